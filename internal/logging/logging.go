// Package logging makes the zap logger of Ebb's commands.
package logging

import (
	"fmt"
	"os"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"
)

// New returns a logger for messages of at least that level (debug, info, warn or error).
// It writes to stderr: readable text on a terminal, otherwise one JSON object per line.
func New(level string) (*zap.Logger, error) {
	var at zapcore.Level
	if err := at.UnmarshalText([]byte(strings.ToLower(level))); err != nil {
		return nil, fmt.Errorf("log level %q: want debug, info, warn or error", level)
	}
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = zapcore.RFC3339TimeEncoder
	encoder := zapcore.NewJSONEncoder(encoding)
	if term.IsTerminal(int(os.Stderr.Fd())) { // #nosec G115 -- a file descriptor is a small number
		encoding.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05")
		encoding.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(encoding)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(os.Stderr), at)), nil
}
