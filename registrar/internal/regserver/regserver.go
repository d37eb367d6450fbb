// Package regserver answers a kubelet on the registration socket:
// pluginregistration v1 (the same on the wire as v1beta1 and v1alpha1) and
// csiregistration.CSIRegistration. What the kubelet says goes to a channel;
// what to do about it is decided elsewhere.
//
// It is for one driver and one socket; a registration that is tried again gets
// a new Server.
package regserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/longshore-csi/longshore/csikit/csiregistration"
)

// stopTimeout bounds how long a stopping server waits for running calls.
const stopTimeout = 2 * time.Second

// Version is the version of the registration that is offered to the kubelet.
const Version = "1.0.0"

// Driver is the information for the kubelet.
type Driver struct {
	// Name of the driver.
	Name string
	// Endpoint is the driver's socket as the kubelet sees it.
	Endpoint string
	// RequiresPublishPod asks for pod information in NodePublishVolume.
	RequiresPublishPod bool
}

// Verdict is the kubelet's answer to the registration.
type Verdict struct {
	// Registered is true for success.
	Registered bool
	// Reason is the kubelet's text, empty for success.
	Reason string
}

// Server serves one socket.
type Server struct {
	grpc     *grpc.Server
	verdicts chan Verdict
	served   chan error
}

// Start serves driver on listener until Stop.
func Start(listener net.Listener, driver Driver) *Server {
	s := &Server{grpc: grpc.NewServer(), verdicts: make(chan Verdict, 1), served: make(chan error, 1)}
	registerapi.RegisterRegistrationServer(s.grpc, &registration{driver: driver, verdicts: s.verdicts})
	csiregistration.RegisterCSIRegistrationServer(s.grpc, &options{driver: driver})
	go func() { s.served <- s.grpc.Serve(listener) }()
	return s
}

// Verdicts returns what the kubelet says, the latest if several were not read.
func (s *Server) Verdicts() <-chan Verdict { return s.verdicts }

// Stop lets running calls end, for a moment, closes the listener and returns
// when nothing runs any more. A server may be stopped before it has begun.
func (s *Server) Stop() error {
	timer := time.AfterFunc(stopTimeout, s.grpc.Stop)
	defer timer.Stop()
	s.grpc.GracefulStop()
	if err := <-s.served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve registration socket: %w", err)
	}
	return nil
}

// registration implements pluginregistration.Registration.
type registration struct {
	registerapi.UnimplementedRegistrationServer

	driver   Driver
	verdicts chan Verdict
}

var _ registerapi.RegistrationServer = (*registration)(nil)

// GetInfo returns the driver that registers.
func (r *registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type:              registerapi.CSIPlugin,
		Name:              r.driver.Name,
		Endpoint:          r.driver.Endpoint,
		SupportedVersions: []string{Version},
	}, nil
}

// NotifyRegistrationStatus takes the verdict and answers at once: the kubelet
// waits for the answer.
func (r *registration) NotifyRegistrationStatus(_ context.Context, status *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	verdict := Verdict{Registered: status.GetPluginRegistered(), Reason: status.GetError()}
	for {
		select {
		case r.verdicts <- verdict:
			return &registerapi.RegistrationStatusResponse{}, nil
		default:
		}
		select {
		case <-r.verdicts: // the previous verdict was not read; the new one replaces it
		default:
		}
	}
}

// options implements csiregistration.CSIRegistration.
type options struct {
	csiregistration.UnimplementedCSIRegistrationServer

	driver Driver
}

var _ csiregistration.CSIRegistrationServer = (*options)(nil)

// GetCSIDriverInfo returns the options that PluginInfo has no field for.
func (o *options) GetCSIDriverInfo(context.Context, *csiregistration.CSIDriverInfoRequest) (*csiregistration.CSIDriverInfo, error) {
	return &csiregistration.CSIDriverInfo{
		CsiEndpoint: o.driver.Endpoint,
		Options:     &csiregistration.CSIDriverOptions{RequiresPublishPod: o.driver.RequiresPublishPod},
	}, nil
}
