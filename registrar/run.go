package registrar

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/httpserve"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/procmetrics"
	"github.com/longshore-csi/longshore/registrar/internal/drivername"
	"github.com/longshore-csi/longshore/registrar/internal/state"
)

// Run registers the driver until ctx ends, then removes the socket, and
// with it the registration. With ModeProbe it returns at once. The error is
// nil, unless an option is wrong or the HTTP address cannot be listened on.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	for _, warning := range o.Warnings() {
		klog.FromContext(ctx).Info("Command line", logging.KeyReason, warning)
	}
	if o.Mode == ModeProbe {
		return nil
	}
	reg := procmetrics.NewRegistry()
	machine := state.New(reg)
	watcher, err := drivername.New(drivername.Config{Address: o.CSI.Address, Timeout: o.CSI.Timeout, OnFailure: machine.Waiting})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if o.address() != "" {
		server, err := listen(ctx, &o, reg, machine)
		if err != nil {
			return errors.Join(err, watcher.Close())
		}
		group.Go(func() error { return server.Run(ctx) })
	}
	identities := newLatest()
	group.Go(func() error {
		watcher.Run(ctx, identities.put)
		return nil
	})
	group.Go(func() error {
		newKeeper(o, machine).run(ctx, identities.ch)
		return nil
	})
	return group.Wait()
}

// listen binds the HTTP address.
func listen(ctx context.Context, o *Options, gatherer prometheus.Gatherer, machine *state.Machine) (*httpserve.Server, error) {
	server, err := httpserve.Listen(httpserve.Config{
		Address:  o.address(),
		Gatherer: gatherer,
		Health:   func(context.Context) error { return machine.Health() },
		Ready:    map[string]func(context.Context) error{"registration": func(context.Context) error { return machine.Ready() }},
		State:    func() any { return machine.Get() },
		Pprof:    o.Pprof,
		Logger:   klog.FromContext(ctx),
	})
	if err != nil {
		return nil, fmt.Errorf("serve health: %w", err)
	}
	if o.listening != nil {
		o.listening(server.Addr())
	}
	return server, nil
}

// latest is a channel that holds the newest identity only.
type latest struct{ ch chan drivername.Identity }

func newLatest() latest { return latest{ch: make(chan drivername.Identity, 1)} }

// put never blocks. It is for one goroutine.
func (l latest) put(identity drivername.Identity) {
	select {
	case <-l.ch: // the previous identity was not read yet; the new one replaces it
	default:
	}
	l.ch <- identity
}
