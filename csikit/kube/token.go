package kube

import (
	"context"
	"encoding/json"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// RequestToken implements Client. The request is JSON, so the scheme needs no kinds of the group authentication.k8s.io. Errors never
// contain a token.
func (c *client) RequestToken(ctx context.Context, namespace, serviceAccount string, req *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	req = req.DeepCopy()
	req.SetGroupVersionKind(authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"))
	body, err := json.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("encode the request for a token of %s/%s: %w", namespace, serviceAccount, err)
	}
	reply := c.core.Post().Namespace(namespace).Resource("serviceaccounts").Name(serviceAccount).SubResource("token").
		SetHeader("Content-Type", runtime.ContentTypeJSON).SetHeader("Accept", runtime.ContentTypeJSON).Body(body).Do(ctx)
	if err := reply.Error(); err != nil {
		return nil, err
	}
	data, err := reply.Raw()
	if err != nil {
		return nil, err
	}
	result := &authenticationv1.TokenRequest{}
	if json.Unmarshal(data, result) != nil || result.Status.Token == "" { // an error may quote what it does not understand
		return nil, fmt.Errorf("answer to the request for a token of %s/%s has no token", namespace, serviceAccount)
	}
	return result, nil
}
