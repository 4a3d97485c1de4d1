package engine

import (
	"go.temporal.io/sdk/log"
	"go.uber.org/zap"
)

// Logger returns a Temporal SDK logger that writes to z.
func Logger(z *zap.Logger) log.Logger {
	return logger{z.WithOptions(zap.AddCallerSkip(1)).Sugar()}
}

type logger struct{ z *zap.SugaredLogger }

var (
	_ log.Logger     = logger{}
	_ log.WithLogger = logger{}
)

func (l logger) Debug(msg string, keyvals ...any) { l.z.Debugw(msg, keyvals...) }
func (l logger) Info(msg string, keyvals ...any)  { l.z.Infow(msg, keyvals...) }
func (l logger) Warn(msg string, keyvals ...any)  { l.z.Warnw(msg, keyvals...) }
func (l logger) Error(msg string, keyvals ...any) { l.z.Errorw(msg, keyvals...) }

func (l logger) With(keyvals ...any) log.Logger { return logger{l.z.With(keyvals...)} }
