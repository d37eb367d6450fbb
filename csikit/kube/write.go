package kube

import (
	"errors"
	"fmt"
	"net"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ErrGone is an object that was deleted while it was reconciled. The cache may not have learned of it yet.
var ErrGone = errors.New("object is gone")

// PatchError returns the error of a patch of an object that was read before, such as PersistentVolume "pv": a conflict for all answers
// that IsStale recognizes, ErrGone if there is no such object any more.
func PatchError(kind, name string, err error) error {
	switch {
	case IsStale(err):
		return apierrors.NewConflict(schema.GroupResource{Resource: kind}, name, err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("patch %s %q: %w: %w", kind, name, ErrGone, err)
	}
	return fmt.Errorf("patch %s %q: %w", kind, name, err)
}

// IsTransient reports whether an error is a conflict, or means that the API server is overloaded or cannot be reached. Users cannot fix
// such errors, so that neither status nor events need them; a write would add load. The answer of a CSI driver is not transient.
func IsTransient(err error) bool {
	var network net.Error // connection refused, reset, timed out
	return errors.As(err, &network) || apierrors.IsConflict(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsInternalError(err)
}
