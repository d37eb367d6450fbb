package kube

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IsStale reports whether the API server refused a write because the object is not the one that was read any more:
// it has another resourceVersion (409), or another UID (409 for an update or a deletion, 422 with the cause
// metadata.uid for a patch), or it is being deleted meanwhile and takes no more finalizers (422 with the cause
// metadata.finalizers), or the "test" of a JSON patch has failed (422 without a name or a cause). The caller
// reads the object again. An object that breaks any other rule is not stale.
func IsStale(err error) bool {
	if apierrors.IsConflict(err) {
		return true
	}
	var refused apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &refused) {
		return false
	}
	details := refused.Status().Details
	if details == nil || details.Name == "" && len(details.Causes) == 0 {
		return true
	}
	return onlyStale(details.Causes)
}

// onlyStale reports whether all causes come from an outdated read. The server may name a cause twice.
func onlyStale(causes []metav1.StatusCause) bool {
	for _, cause := range causes {
		if cause.Field != "metadata.uid" && cause.Field != "metadata.finalizers" {
			return false
		}
	}
	return len(causes) > 0
}
