package kube

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"unicode/utf8"

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

// IgnoreGone drops the error of a write to an object that is gone.
func IgnoreGone(err error) error {
	if errors.Is(err, ErrGone) {
		return nil
	}
	return err
}

// Cut makes a text valid UTF-8 of at most that many bytes, as statuses and events are to have it; it ends at the border of a character.
func Cut(text string, most int) string {
	const mark = "..."
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= most {
		return text
	}
	end := most - len(mark)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + mark
}

// IsRefused reports whether the API server has answered that it will not do what it was asked for, as it is: users can do something about that.
func IsRefused(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && !IsTransient(err) && !IsStale(err) && !errors.Is(err, ErrGone)
}

// IsTransient reports whether an error is a conflict, or means that the API server is overloaded or cannot be reached. Users cannot fix
// such errors, so that neither status nor events need them; a write would add load. The answer of a CSI driver is not transient, and an admission webhook that
// fails is what an administrator has to know.
func IsTransient(err error) bool {
	if apierrors.IsInternalError(err) && strings.Contains(err.Error(), "failed calling webhook") {
		return false
	}
	var network net.Error // connection refused, reset, timed out
	return errors.As(err, &network) || apierrors.IsConflict(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsInternalError(err)
}
