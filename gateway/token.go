package main

import (
	"errors"
	"flag"
	"io"
	"strings"

	"ebb/internal/api"
)

// aboutTokens is printed above the flags.
// #nosec G101 -- a text about tokens, not one
const aboutTokens = `ebb-gateway token makes a token. The token is printed once, alone, on standard
output; the line for the tokens file, which holds only its hash, on standard error.

Flags:
`

// runToken makes a token and its line for the tokens file.
func runToken(args []string, stdout, stderr io.Writer) int {
	var name, role, clusters string
	flags := flag.NewFlagSet("ebb-gateway token", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&name, "name", "", "who uses it, for the audit (required)")
	flags.StringVar(&role, "role", string(api.Viewer), "viewer, operator or admin")
	flags.StringVar(&clusters, "clusters", "", `names of clusters, comma-separated, or "*" for all (required)`)
	flags.Usage = func() {
		tell(stderr, "%s", aboutTokens)
		flags.PrintDefaults()
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case err != nil:
		return exitUsage
	case flags.NArg() > 0:
		tell(stderr, "ebb-gateway token: unexpected argument %q\n", flags.Arg(0))
		return exitUsage
	}
	token, hash, err := api.NewToken()
	if err != nil {
		tell(stderr, "ebb-gateway token: %v\n", err)
		return exitFailed
	}
	var scope []string
	if clusters != "" {
		scope = strings.Split(clusters, ",")
	}
	line, err := api.TokenLine(name, hash, api.Role(role), scope)
	if err != nil {
		tell(stderr, "ebb-gateway token: %v; see ebb-gateway token --help\n", err)
		return exitUsage
	}
	tell(stderr, "Add this below \"tokens:\" in gateway.tokensFile, and keep the token itself secret:\n%s\n", line)
	tell(stdout, "%s\n", token)
	return exitDone
}
