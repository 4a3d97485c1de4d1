package main

import (
	"flag"
	"io"
	"strings"

	"ebb/internal/api/auth"
	"ebb/internal/command"
)

// aboutTokens is printed above the flags.
// #nosec G101 -- a text about tokens, not one
const aboutTokens = `ebb-gateway token makes a token. The token is printed once, alone, on standard
output; the line for the tokens file, which holds only its hash, on standard error.

Flags:
`

// runToken runs `ebb-gateway token` and returns its exit code.
func runToken(args []string, stdout, stderr io.Writer) int {
	var name, role, clusters string
	flags := flag.NewFlagSet("ebb-gateway token", flag.ContinueOnError)
	flags.StringVar(&name, "name", "", "who uses it, for the audit (required)")
	flags.StringVar(&role, "role", string(auth.Viewer), "viewer, operator or admin")
	flags.StringVar(&clusters, "clusters", "", `names of clusters, comma-separated, or "*" for all (required)`)
	if err := command.ParseFlags(flags, aboutTokens, args, stderr); err != nil {
		return command.ParseExitCode(err)
	}
	token, hash, err := auth.NewToken()
	if err != nil {
		command.Printf(stderr, "ebb-gateway token: %v\n", err)
		return command.ExitFailed
	}
	var scope []string
	if clusters != "" {
		scope = strings.Split(clusters, ",")
	}
	line, err := auth.TokenFileEntry(name, hash, auth.Role(role), scope)
	if err != nil {
		command.Printf(stderr, "ebb-gateway token: %v; see ebb-gateway token --help\n", err)
		return command.ExitUsage
	}
	command.Printf(stderr, "Add this below \"tokens:\" in gateway.tokensFile, and keep the token itself secret:\n%s\n", line)
	command.Printf(stdout, "%s\n", token)
	return command.ExitDone
}
