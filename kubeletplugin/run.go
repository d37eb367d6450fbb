package kubeletplugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/recovery"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// lockName is the file that keeps two plugins from working below one root directory. A kubelet does not know it.
const lockName = ".csi-node-agent.lock"

// bootName is the file with the boot ID of the machine.
const bootName = ".csi-node-agent.boot"

var (
	// ErrNotOpen is the error of calls before Start, or Open, has returned: what an earlier process has left is not known yet.
	ErrNotOpen = errors.New("the plugin is not open: call Start first")
	// ErrEnded is the error of calls that the plugin cannot complete any more, as it has ended.
	ErrEnded = errors.New("the plugin has ended")
)

// Start takes over what an earlier process has left, and works until ctx is done; Wait returns then. When Start returns, drivers can be registered, and volumes
// can be mounted and unmounted. Volumes stay mounted at the end, as they do when the process is killed: the next start finds them. It is called once. It returns
// an error if another plugin works below the same root directory, or if that directory or the mount table cannot be read.
func (p *Plugin) Start(ctx context.Context) error {
	found, err := p.Open(ctx)
	if err != nil {
		return err
	}
	logger := klog.FromContext(ctx)
	for _, l := range found.Lost {
		logger.Error(l.Err, "The record of a volume of a pod is lost: it is taken over when the pod is mounted or unmounted, if its volume is known", logging.KeyPath, l.Path, "pod", l.Key.Pod)
	}
	for _, f := range found.Foreign {
		logger.Info("Something of which no record says what it is stays as it is", logging.KeyPath, f.Path, logging.KeyReason, f.Problem)
	}
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return p.RunDrivers(running) })
	g.Go(func() error { return p.RunVolumes(running) })
	p.finished = make(chan struct{})
	go func() {
		p.result = errors.Join(g.Wait(), p.Close())
		close(p.finished)
	}()
	return nil
}

// Wait returns when the plugin has ended after Start, with the reason if it was not the end of its ctx.
func (p *Plugin) Wait() error {
	<-p.finished
	return p.result
}

// Run is Start and Wait.
func (p *Plugin) Run(ctx context.Context) error {
	if err := p.Start(ctx); err != nil {
		return err
	}
	return p.Wait()
}

// working returns an error if the plugin is not open, or has ended.
func (p *Plugin) working() error {
	select {
	case <-p.opened:
	default:
		return ErrNotOpen
	}
	select {
	case <-p.ended:
		return ErrEnded
	default:
		return nil
	}
}

// end has the calls return that wait for volumes.
func (p *Plugin) end() { p.ending.Do(func() { close(p.ended) }) }

// Open takes the root directory for this process, and takes over the volumes that an earlier one has left there; nothing is unmounted yet. Callers for which
// the order of things matters call Open, RunDrivers, RunVolumes and Close in place of Start. The result says what was found on disk: pods that are not there any
// more have to be given to Unmount.
func (p *Plugin) Open(ctx context.Context) (*volume.Found, error) {
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
	rebooted, err := p.rebooted()
	if err != nil {
		return nil, errors.Join(err, unlock())
	}
	for i := range found.Volumes {
		v := &found.Volumes[i]
		v.Rebooted, v.Volume.Attachable = rebooted, v.Volume.Attachable && !p.cfg.noAttach()
	}
	attached, err := p.attacher.open()
	if err != nil {
		return nil, errors.Join(err, unlock())
	}
	p.metrics.count(found)
	p.unlock, p.unexplained = unlock, newUnexplained(p.root, found)
	p.volumes.Adopt(found.Volumes)
	p.volumes.Adopt(attached)
	for _, v := range slices.Concat(found.Volumes, attached) {
		if len(v.Targets) == 0 {
			p.orphans = append(p.orphans, v.Volume.Name)
		}
	}
	close(p.opened)
	return found, nil
}

// rebooted reports whether the machine has started again since the last Open below the root, so that nothing that was mounted then is open. It is not where that is
// not known.
func (p *Plugin) rebooted() (bool, error) {
	now, err := os.ReadFile(p.bootID)
	if err != nil {
		return false, nil //nolint:nilerr // a machine without such a file
	}
	file := filepath.Join(p.cfg.RootDir, bootName)
	before, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("look whether the machine has started again: %w", err)
	}
	if bytes.Equal(before, now) {
		return false, nil
	}
	if err := os.WriteFile(file, now, 0o600); err != nil {
		// A full disk must not keep volumes from being taken down. Without a record, or with half of one, the next start must not conclude anything either.
		if removeErr := os.Remove(file); removeErr != nil && !errors.Is(removeErr, os.ErrNotExist) {
			return false, fmt.Errorf("record the start of the machine: %w", errors.Join(err, removeErr))
		}
		return false, nil
	}
	return len(before) > 0, nil
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
	defer p.end()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.volumes.Run(ctx) })
	if p.collector != nil {
		g.Go(func() error { return p.collector.Run(ctx) })
	}
	if p.attacher != nil {
		g.Go(func() error { return p.attacher.run(ctx) })
	}
	return g.Wait()
}

// Close ends the connections to drivers, and gives the root directory free. Nothing may run any more.
func (p *Plugin) Close() error {
	p.end()
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
