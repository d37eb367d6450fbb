package snapshotmetadata

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/snapshotmetadata/internal/access"
	"github.com/longshore-csi/longshore/snapshotmetadata/internal/certificate"
	"github.com/longshore-csi/longshore/snapshotmetadata/internal/kubeapi"
	"github.com/longshore-csi/longshore/snapshotmetadata/internal/service"
	"github.com/longshore-csi/longshore/snapshotmetadata/internal/snapshot"
)

const (
	name = "csi-snapshot-metadata"
	// healthPath is where the external-snapshot-metadata has its health.
	healthPath = "/health"
)

// Run serves the metadata of the snapshots of the driver behind o.CSI until ctx ends, which is no error. It waits for the driver first. Streams
// that are running when ctx ends go on for up to 25 seconds, and then end with UNAVAILABLE: clients continue them elsewhere.
//
// It returns an error for options that are not valid, a certificate that cannot be used, an address that cannot be listened on, a missing
// kubeconfig, and csiclient.ErrConnectionLost if o.ExitOnConnectionLoss is set. The logger is taken from ctx.
func Run(ctx context.Context, o Options) error {
	return run(ctx, o, &clients{})
}

// clients reach the API server.
type clients struct {
	snapshots snapshotapi.Client
	own       kubeapi.Client
}

// connect makes the clients.
func (c *clients) connect(cfg *rest.Config) (err error) {
	if c.snapshots, err = snapshotapi.New(cfg); err != nil {
		return err
	}
	c.own, err = kubeapi.New(cfg)
	return err
}

func run(ctx context.Context, o Options, c *clients) error {
	cfg, err := o.sidecar(ctx, c)
	if err != nil {
		return err
	}
	return sidecar.Run(ctx, cfg)
}

// sidecar returns what makes a sidecar this component.
func (o *Options) sidecar(ctx context.Context, c *clients) (sidecar.Config, error) {
	if err := o.Validate(); err != nil {
		return sidecar.Config{}, err
	}
	store, err := certificate.Load(certificate.Files{Cert: o.TLSCert, Key: o.TLSKey}, klog.FromContext(ctx))
	if err != nil {
		return sidecar.Config{}, err
	}
	config, err := o.policy().Config(store)
	if err != nil {
		return sidecar.Config{}, err
	}
	options := sidecar.NewOptions(nil)
	options.CSI, options.Kube, options.HTTP, options.Secrets = o.CSI, o.Kube, o.HTTP, o.Secrets
	options.KubeTimeout, options.ExitOnConnectionLoss = o.KubeTimeout, o.ExitOnConnectionLoss
	return sidecar.Config{
		Name:           name,
		Options:        options,
		Warnings:       o.Warnings(),
		CSI:            csiclient.Config{Services: csiclient.IdentityOnly},
		EventComponent: func(string) string { return name },
		StateKey:       "streams",
		Features:       func(info *csiclient.Info) any { return announced(info) },
		CheckName:      "capabilities",
		CheckMessage:   "No metadata can be served; the capabilities are read again every few seconds",
		ReadyPath:      healthPath,
		NoMetrics:      o.DisableMetrics,
		Connected:      c.connect,
		New: func(_ context.Context, env sidecar.Environment) (sidecar.Work, error) {
			return o.work(env, c, config), nil
		},
	}, nil
}

// announced reports whether a driver has snapshot metadata.
func announced(info *csiclient.Info) bool {
	return info.Plugin[csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE]
}

// work serves gRPC.
func (o *Options) work(env sidecar.Environment, c *clients, config *tls.Config) sidecar.Work {
	check := func() error {
		if announced(env.CSI.Info()) {
			return nil
		}
		return fmt.Errorf("CSI driver %q does not announce the plugin capability SNAPSHOT_METADATA_SERVICE", env.Driver)
	}
	metadata := service.New(service.Config{
		Driver: env.Driver,
		CSI:    csi.NewSnapshotMetadataClient(env.CSI.Conn()),
		Ready: func(ctx context.Context) error {
			if err := check(); err != nil {
				return err
			}
			return env.CSI.Ready(ctx)
		},
		Access:            &access.Checker{API: c.own, Driver: env.Driver, Audience: o.Audience},
		Finder:            &snapshot.Finder{Driver: env.Driver, Snapshots: c.snapshots, Secrets: env.Secrets},
		KubeTimeout:       o.KubeTimeout,
		MaxStreaming:      time.Duration(o.MaxStreamingMinutes) * time.Minute,
		MaxStreams:        o.MaxStreams,
		MaxStreamsPerUser: o.MaxStreamsPerUser,
		Drain:             env.Drain,
		Metrics:           service.NewMetrics(env.Registerer, env.Driver),
	})
	return sidecar.Work{
		Check: check,
		NewController: func() sidecar.Controller {
			return &server{address: net.JoinHostPort("", strconv.Itoa(o.Port)), config: config, service: metadata, listening: o.listening}
		},
	}
}

// server is the sidecar's controller: it has no objects to work on, but a service.
type server struct {
	address   string
	config    *tls.Config
	service   *service.Service
	listening func(string)
}

var _ sidecar.Controller = (*server)(nil)

// Run implements sidecar.Controller.
func (s *server) Run(ctx context.Context) error {
	listener, err := service.Listen(ctx, s.address, s.config, s.service)
	if err != nil {
		return err
	}
	if s.listening != nil {
		s.listening(listener.Addr())
	}
	return listener.Run(ctx)
}

// Synced implements sidecar.Controller: there are no informers.
func (s *server) Synced() error { return nil }

// DriverChanged implements sidecar.Controller: each call asks the driver.
func (s *server) DriverChanged(context.Context) {}

// State implements sidecar.Controller: the number of streams by user.
func (s *server) State() any { return s.service.Streams() }
