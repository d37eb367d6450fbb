// Package access decides who may read the metadata of a snapshot: the bearer of a token that the API server accepts for the service's
// audience, and who has the right to get the VolumeSnapshot (KEP-3314, "Risks and Mitigations").
package access

import (
	"context"
	"errors"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/snapshotmetadata/internal/kubeapi"
)

var (
	// ErrUnauthenticated is the error for a token that the API server does not accept for the audience.
	ErrUnauthenticated = errors.New("token is not accepted")
	// ErrForbidden is the error for a user without the right to get the VolumeSnapshot.
	ErrForbidden = errors.New("access is denied")
)

// Checker asks the API server. Other errors than those of this package mean that it has not decided.
type Checker struct {
	// API asks for the reviews.
	API kubeapi.Client
	// Driver names the SnapshotMetadataService with the audience, unless Audience is set.
	Driver string
	// Audience is the one for which tokens must be made. Empty: that of the SnapshotMetadataService.
	Audience string
}

// User returns the user whose token it is. Errors do not contain the token.
func (c *Checker) User(ctx context.Context, token string) (*authenticationv1.UserInfo, error) {
	audience := c.Audience
	if audience == "" {
		var err error
		if audience, err = c.API.Audience(ctx, c.Driver); err != nil {
			return nil, fmt.Errorf("find the audience of tokens: %w", err)
		}
	}
	review, err := c.API.ReviewToken(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{audience}},
	})
	if err != nil {
		return nil, err
	}
	switch status := &review.Status; {
	case !status.Authenticated && status.Error != "":
		return nil, fmt.Errorf("%w for audience %q: %s", ErrUnauthenticated, audience, status.Error)
	case !status.Authenticated:
		return nil, fmt.Errorf("%w for audience %q", ErrUnauthenticated, audience)
	case !slices.Contains(status.Audiences, audience): // an authenticator that knows no audiences accepts a token for the API server
		return nil, fmt.Errorf("%w: it is for audiences %q, not for %q", ErrUnauthenticated, status.Audiences, audience)
	default:
		return &status.User, nil
	}
}

// Check returns nil if the user may get the VolumeSnapshot.
func (c *Checker) Check(ctx context.Context, user *authenticationv1.UserInfo, namespace, name string) error {
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	review, err := c.API.ReviewAccess(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "get", Group: snapshotapi.Group, Version: "v1", Resource: "volumesnapshots", Namespace: namespace, Name: name,
		},
	}})
	switch {
	case err != nil:
		return err
	case review.Status.Allowed && !review.Status.Denied:
		return nil
	case review.Status.EvaluationError != "":
		return fmt.Errorf("%w: user %q cannot get volumesnapshots.%s in namespace %q: %s", ErrForbidden, user.Username, snapshotapi.Group, namespace, review.Status.EvaluationError)
	default:
		return fmt.Errorf("%w: user %q cannot get volumesnapshots.%s in namespace %q", ErrForbidden, user.Username, snapshotapi.Group, namespace)
	}
}
