// Package kubeapi is a client of the kinds that only this component uses: SnapshotMetadataServices, and the reviews of tokens and of rights.
// Those of other kinds are in csikit.
package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

const (
	// Group is the API group of SnapshotMetadataServices.
	Group = "cbt.storage.k8s.io"
	// Resource is the resource of SnapshotMetadataServices.
	Resource = "snapshotmetadataservices"
)

// versions returns the versions of SnapshotMetadataServices, the preferred one first. They have the same fields.
func versions() []string { return []string{"v1beta1", "v1alpha1"} }

// Client reads SnapshotMetadataServices and asks for reviews.
type Client interface {
	// Audience returns spec.audience of the SnapshotMetadataService with that name, which is the name of a driver.
	Audience(ctx context.Context, driver string) (string, error)
	// ReviewToken asks whose token it is.
	ReviewToken(ctx context.Context, review *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error)
	// ReviewAccess asks whether a user may do something.
	ReviewAccess(ctx context.Context, review *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error)
}

type client struct{ authentication, authorization rest.Interface }

var _ Client = (*client)(nil)

// New returns a client for cfg. Nothing is sent yet.
func New(cfg *rest.Config) (Client, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{authenticationv1.AddToScheme, authorizationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("make a scheme: %w", err)
		}
	}
	cfg = rest.CopyConfig(cfg)
	cfg.APIPath, cfg.NegotiatedSerializer = "/apis", serializer.NewCodecFactory(scheme).WithoutConversion()
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a transport to %q: %w", cfg.Host, err)
	}
	of := func(gv schema.GroupVersion) (*rest.RESTClient, error) {
		cfg := rest.CopyConfig(cfg)
		cfg.GroupVersion = &gv
		return rest.RESTClientForConfigAndClient(cfg, &http.Client{Transport: transport, Timeout: cfg.Timeout})
	}
	authentication, err := of(authenticationv1.SchemeGroupVersion)
	if err != nil {
		return nil, fmt.Errorf("make a client for %q: %w", cfg.Host, err)
	}
	cfg.RateLimiter = authentication.GetRateLimiter() // one limit for all kinds
	authorization, err := of(authorizationv1.SchemeGroupVersion)
	if err != nil {
		return nil, fmt.Errorf("make a client for %q: %w", cfg.Host, err)
	}
	return &client{authentication: authentication, authorization: authorization}, nil
}

// metadataService is what is read of a SnapshotMetadataService.
type metadataService struct {
	Spec struct {
		Audience string `json:"audience"`
	} `json:"spec"`
}

// Audience implements Client.
func (c *client) Audience(ctx context.Context, driver string) (string, error) {
	data, err := c.get(ctx, driver)
	if err != nil {
		return "", fmt.Errorf("get SnapshotMetadataService %q: %w", driver, err)
	}
	var object metadataService
	if err := json.Unmarshal(data, &object); err != nil {
		return "", fmt.Errorf("decode SnapshotMetadataService %q: %w", driver, err)
	}
	if object.Spec.Audience == "" {
		return "", fmt.Errorf("SnapshotMetadataService %q: spec.audience is empty", driver)
	}
	return object.Spec.Audience, nil
}

// get reads the object in the first version in which the server has it.
func (c *client) get(ctx context.Context, name string) (data []byte, err error) {
	for _, version := range versions() {
		result := c.authentication.Get().AbsPath("/apis", Group, version, Resource, name).SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx)
		if again := result.Error(); again == nil {
			return result.Raw()
		} else if err == nil { // that of the preferred version says most
			err = again
		}
		if !apierrors.IsNotFound(err) {
			break
		}
	}
	return nil, err
}

// ReviewToken implements Client.
func (c *client) ReviewToken(ctx context.Context, review *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
	result := &authenticationv1.TokenReview{}
	if err := c.authentication.Post().Resource("tokenreviews").Body(review).Do(ctx).Into(result); err != nil {
		return nil, fmt.Errorf("create TokenReview: %w", err)
	}
	return result, nil
}

// ReviewAccess implements Client.
func (c *client) ReviewAccess(ctx context.Context, review *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error) {
	result := &authorizationv1.SubjectAccessReview{}
	if err := c.authorization.Post().Resource("subjectaccessreviews").Body(review).Do(ctx).Into(result); err != nil {
		return nil, fmt.Errorf("create SubjectAccessReview: %w", err)
	}
	return result, nil
}
