// Package engine connects to Temporal: the embedded server or a Temporal cluster, as the
// standard TEMPORAL_* settings say.
package engine

import (
	"context"
	"errors"
	"fmt"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TaskQueue is the queue that Ebb's workers poll.
const TaskQueue = "ebb"

// Options override the environment and the profile; an empty field does not.
type Options struct {
	Address   string // host:port
	Namespace string
}

// Dial connects with TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, the TLS and API key settings,
// or the profile named by TEMPORAL_PROFILE; the default is localhost:7233 and namespace
// "default". The error says which address did not answer and what to do.
func Dial(ctx context.Context, log *zap.Logger, o Options) (client.Client, error) {
	options, err := LoadClientOptions(o)
	if err != nil {
		return nil, err
	}
	return dial(ctx, log, options)
}

// Connect is Dial without overrides. It returns the namespace, too.
func Connect(ctx context.Context, log *zap.Logger) (c client.Client, namespace string, err error) {
	options, err := LoadClientOptions(Options{})
	if err != nil {
		return nil, "", err
	}
	c, err = dial(ctx, log, options)
	return c, options.Namespace, err
}

func dial(ctx context.Context, log *zap.Logger, options client.Options) (client.Client, error) {
	options.Logger = Logger(log)
	options.ConnectionOptions.DialOptions = append([]grpc.DialOption{grpc.WithChainUnaryInterceptor(scheduledByThisClock)}, options.ConnectionOptions.DialOptions...)
	c, err := client.DialContext(ctx, options)
	if err != nil {
		return nil, dialError(ctx, options, err)
	}
	return c, nil
}

// dialError returns the error of a Dial with what a user can do about it.
func dialError(ctx context.Context, o client.Options, err error) error {
	var refused *serviceerror.PermissionDenied
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("connect to Temporal at %s: %w", o.HostPort, ctx.Err())
	case errors.As(err, &refused), status.Code(err) == codes.Unauthenticated:
		return fmt.Errorf("the Temporal engine at %s refuses these credentials (namespace %s): check TEMPORAL_API_KEY and TEMPORAL_TLS_*: %w",
			o.HostPort, o.Namespace, err)
	default:
		return fmt.Errorf("no Temporal engine answers at %s (namespace %s): start one with `ebb dev`, or set TEMPORAL_ADDRESS: %w",
			o.HostPort, o.Namespace, err)
	}
}

// LoadClientOptions returns the options that Dial connects with.
func LoadClientOptions(o Options) (client.Options, error) {
	options, err := envconfig.LoadDefaultClientOptions()
	if err != nil {
		return client.Options{}, fmt.Errorf("TEMPORAL_* settings: %w", err)
	}
	if o.Address != "" {
		options.HostPort = o.Address
	}
	if o.Namespace != "" {
		options.Namespace = o.Namespace
	}
	if options.HostPort == "" {
		options.HostPort = client.DefaultHostPort
	}
	if options.Namespace == "" {
		options.Namespace = client.DefaultNamespace
	}
	return options, nil
}

// ID returns what identifies the Temporal server and namespace of a client: the cluster
// ID, which is kept in the server's database, and the namespace.
func ID(ctx context.Context, c client.Client, namespace string) (string, error) {
	info, err := c.WorkflowService().GetClusterInfo(ctx, &workflowservice.GetClusterInfoRequest{})
	if err != nil {
		return "", fmt.Errorf("identify the Temporal engine: %w", err)
	}
	return info.GetClusterId() + "/" + namespace, nil
}
