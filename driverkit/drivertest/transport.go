package drivertest

import (
	"errors"
	"net/http"

	"github.com/longshore-csi/longshore/driverkit"
)

// Transport is an http.RoundTripper for the client of a storage system: the walk lets the driver die, and its call end, before each request and after each answer, so that answers are lost. The
// context of a request has to be that of the call.
type Transport struct {
	// Base makes the requests; nil is http.DefaultTransport.
	Base http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	name := req.Method + " " + req.URL.Path
	driverkit.FaultPoint(req.Context(), name)
	resp, err := base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	driverkit.FaultPoint(req.Context(), name+" answered")
	if err := req.Context().Err(); err != nil {
		return nil, errors.Join(err, resp.Body.Close())
	}
	return resp, nil
}
