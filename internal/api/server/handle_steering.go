package server

import (
	"net/http"

	"ebb/internal/api/auth"
	"ebb/internal/api/wire"
	"ebb/internal/ops"
)

// cancelOperation asks an operation to undo what it has done.
func (s *Server) cancelOperation(x *exchange) error {
	if _, err := s.readSteering(x, &struct{}{}); err != nil {
		return err
	}
	if err := s.authorizeOperation(x, auth.Operator); err != nil {
		return err
	}
	if err := s.options.Operations.Cancel(x.ctx(), x.operation); err != nil {
		return err
	}
	op, err := s.options.Operations.Get(x.ctx(), x.operation)
	if err != nil {
		return err
	}
	return x.respondJSON(http.StatusOK, op)
}

// steerOperation returns the handler of an action.
func steerOperation(action ops.Action) func(*Server, *exchange) error {
	return func(s *Server, x *exchange) error {
		var asked wire.Steering
		key, err := s.readSteering(x, &asked)
		if err != nil {
			return err
		}
		if action == ops.SkipNode && asked.Node == "" {
			return &ops.RequestError{Faults: []string{`field "node" is required: the node to leave out`}}
		}
		if err := s.authorizeOperation(x, auth.Operator); err != nil {
			return err
		}
		said, err := s.options.Operations.Steer(x.ctx(), x.operation, ops.Steering{Action: action, Node: asked.Node, Key: key})
		if err != nil {
			return err
		}
		return x.respondJSON(http.StatusOK, wire.Steered{Operation: x.operation, Action: action, Node: asked.Node, Answer: said})
	}
}

// readSteering returns the Idempotency-Key of a request, and decodes its optional body.
func (s *Server) readSteering(x *exchange, into any) (key string, err error) {
	if key, err = x.idempotencyKey(); err != nil {
		return "", err
	}
	if err := x.query().err(); err != nil {
		return "", err
	}
	return key, x.readJSON(into, true)
}
