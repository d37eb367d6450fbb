package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/kubeletplugin/recovery"
)

// lockName is the file that keeps two plugins from working below one root directory. A kubelet does not know it.
const lockName = ".csi-node-agent.lock"

// Run works until ctx is done. Volumes stay mounted then, as they do when the process is killed: the next start finds them. It is called once. It returns
// an error if another plugin works below the same root directory, or if that directory or the mount table cannot be read.
func (p *Plugin) Run(ctx context.Context) error {
	if _, err := p.Open(ctx); err != nil {
		return err
	}
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return p.RunDrivers(running) })
	g.Go(func() error { return p.RunVolumes(running) })
	return errors.Join(g.Wait(), p.Close())
}

// Open takes the root directory for this process, and takes over the volumes that an earlier one has left there; nothing is unmounted yet. Callers for which
// the order of things matters call Open, RunDrivers, RunVolumes and Close in place of Run. The result says what was found on disk: pods that are not there any
// more have to be given to Unmount.
func (p *Plugin) Open(ctx context.Context) (*recovery.Result, error) {
	unlock, err := lockRoot(p.cfg.RootDir)
	if err != nil {
		return nil, err
	}
	found, err := recovery.Scan(p.root, p.cfg.Mounts)
	if err != nil {
		return nil, errors.Join(err, unlock())
	}
	for _, dir := range found.Unused {
		if err := p.disk.SweepStaging(dir); err != nil {
			klog.FromContext(ctx).Error(err, "Keeping a staging directory without a record")
		}
	}
	for i := range found.Volumes {
		v := &found.Volumes[i].Volume
		v.Attachable = v.Attachable && !p.cfg.noAttach()
	}
	p.metrics.count(found)
	p.found, p.unlock = found, unlock
	p.volumes.Adopt(found.Volumes)
	return found, nil
}

// RunDrivers registers drivers until ctx is done.
func (p *Plugin) RunDrivers(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.watcher.Run(ctx) })
	g.Go(func() error { return p.followDrivers(ctx) })
	return g.Wait()
}

// RunVolumes works on volumes, and asks drivers about them, until ctx is done. Staged volumes that no pod has are unstaged at once.
func (p *Plugin) RunVolumes(ctx context.Context) error {
	if p.collector == nil {
		return p.volumes.Run(ctx)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.volumes.Run(ctx) })
	g.Go(func() error { return p.collector.Run(ctx) })
	return g.Wait()
}

// Close ends the connections to drivers, and gives the root directory free. Nothing may run any more.
func (p *Plugin) Close() error {
	p.registry.Close()
	p.unregister()
	return p.unlock()
}

// followDrivers ends the backoff of volumes when their driver comes.
func (p *Plugin) followDrivers(ctx context.Context) error {
	for {
		changed := p.registry.Changed()
		for _, name := range p.registry.Known() {
			p.volumes.DriverChanged(name)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// DriversChanged returns a channel that is closed when the next driver comes or goes.
func (p *Plugin) DriversChanged() <-chan struct{} { return p.registry.Changed() }

// Pods lists the pods that have a directory below the root, sorted.
func (p *Plugin) Pods() ([]types.UID, error) { return recovery.Pods(p.root) }

// lockRoot makes the root directory and takes it for this process until release is called.
func lockRoot(dir string) (release func() error, err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make root directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock root directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		err = fmt.Errorf("lock root directory %q: another node agent uses it: %w", dir, err)
		return nil, errors.Join(err, f.Close())
	}
	return f.Close, nil
}
