package kubetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Lifetime of a token in seconds: the least that the API server grants, and what it grants if nothing is asked for.
const (
	leastTokenSeconds   = 600
	defaultTokenSeconds = 3600
)

// RequestToken implements kube.Client. Each token is another one; faults match the verb create of serviceaccounts/token. Any
// service account exists; a pod to which a token is bound must exist and use it. Only failures are in Writes.
func (c client) RequestToken(ctx context.Context, namespace, serviceAccount string, req *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	r := request{session: c.session, verb: "create", resource: "serviceaccounts", subresource: "token", namespace: namespace, name: serviceAccount}
	return serve(ctx, c.cluster, r, func() (*authenticationv1.TokenRequest, error) {
		c.cluster.mu.Lock()
		defer c.cluster.mu.Unlock()
		return c.cluster.tokenLocked(namespace, serviceAccount, req.DeepCopy())
	})
}

func (c *Cluster) tokenLocked(namespace, serviceAccount string, req *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	if req.Spec.ExpirationSeconds == nil {
		seconds := int64(defaultTokenSeconds)
		req.Spec.ExpirationSeconds = &seconds
	}
	seconds := *req.Spec.ExpirationSeconds
	if seconds < leastTokenSeconds {
		return nil, apierrors.NewInvalid(tokenRequests.GroupKind(), "", field.ErrorList{
			field.Invalid(field.NewPath("spec", "expirationSeconds"), seconds, "must be at least 600"),
		})
	}
	if ref := req.Spec.BoundObjectRef; ref != nil && ref.Kind == "Pod" {
		if err := c.checkBoundLocked(namespace, serviceAccount, ref); err != nil {
			return nil, err
		}
	}
	if len(req.Spec.Audiences) == 0 {
		req.Spec.Audiences = []string{"https://kubernetes.default.svc"}
	}
	c.tokens++
	req.Namespace, req.Name, req.CreationTimestamp = namespace, serviceAccount, metav1.Now()
	req.Status = authenticationv1.TokenRequestStatus{
		Token:               fmt.Sprintf("token-%d-of-%s", c.tokens, serviceAccount),
		ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Duration(seconds) * time.Second)),
	}
	return req, nil
}

var tokenRequests = authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")

// checkBoundLocked checks that a token may be bound to a pod.
func (c *Cluster) checkBoundLocked(namespace, serviceAccount string, ref *authenticationv1.BoundObjectReference) error {
	obj, err := c.getLocked(c.kinds["pods"], namespace, ref.Name)
	if err != nil {
		return err
	}
	pod, ok := obj.(*corev1.Pod)
	switch {
	case !ok:
		return apierrors.NewInternalError(fmt.Errorf("pods holds a %T", obj))
	case pod.Spec.ServiceAccountName != serviceAccount:
		return apierrors.NewBadRequest(fmt.Sprintf("pod %q runs with another service account than %q", ref.Name, serviceAccount))
	case ref.UID != "" && ref.UID != pod.UID:
		return apierrors.NewConflict(schema.GroupResource{Resource: ref.Kind}, ref.Name, errors.New("its UID is another one"))
	default:
		return nil
	}
}
