package auth

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

const (
	// keysLifetime is how long the issuer's keys are used before they are fetched again:
	// so long a key that it has withdrawn is still good.
	keysLifetime = 10 * time.Minute
	// keysMaxAge is how long they are used when the issuer does not answer.
	keysMaxAge = time.Hour
)

// fetchErrorKeySet are the keys of an issuer. A remote key set by itself keeps a key for
// ever; this one is replaced when it is old. It also tells keys that could not be fetched
// from a wrong signature, which the error of the verifier does not.
type fetchErrorKeySet struct {
	newRemote func() oidc.KeySet // one that fetches the keys when it is first used
	now       func() time.Time

	mu      sync.Mutex
	remote  oidc.KeySet
	fetched time.Time // when remote was new
}

func newFetchErrorKeySet(newRemote func() oidc.KeySet, now func() time.Time) *fetchErrorKeySet {
	return &fetchErrorKeySet{newRemote: newRemote, now: now, remote: newRemote(), fetched: now()}
}

// fetchErrorKey is the context key of the error of a fetch.
type fetchErrorKey struct{}

// withFetchError returns a context with which VerifySignature stores the error of a
// failed fetch in err.
func (k *fetchErrorKeySet) withFetchError(ctx context.Context, err *error) context.Context {
	return context.WithValue(ctx, fetchErrorKey{}, err)
}

// VerifySignature implements oidc.KeySet.
func (k *fetchErrorKeySet) VerifySignature(ctx context.Context, jwt string) ([]byte, error) {
	payload, err := k.verify(ctx, jwt)
	if cause := fetchError(err); cause != nil {
		if stored, ok := ctx.Value(fetchErrorKey{}).(*error); ok {
			*stored = cause
		}
	}
	return payload, err
}

// verify verifies a signature with keys that are not too old.
func (k *fetchErrorKeySet) verify(ctx context.Context, jwt string) ([]byte, error) {
	remote, age := k.current()
	if age < keysLifetime {
		return remote.VerifySignature(ctx, jwt)
	}
	fresh := k.newRemote()
	payload, err := fresh.VerifySignature(ctx, jwt)
	switch {
	case fetchError(err) == nil:
		k.replace(fresh)
	case age < keysMaxAge:
		return remote.VerifySignature(ctx, jwt)
	}
	return payload, err
}

func (k *fetchErrorKeySet) current() (remote oidc.KeySet, age time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.remote, k.now().Sub(k.fetched)
}

func (k *fetchErrorKeySet) replace(fresh oidc.KeySet) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.remote, k.fetched = fresh, k.now()
}

// fetchError returns why a remote key set could not fetch the keys, nil if err is about
// the signature: it wraps an error only then.
func fetchError(err error) error { return errors.Unwrap(err) }
