package kubeletplugintest

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

const (
	// unavailablePause is the pause before a call is repeated that a driver did not answer.
	unavailablePause = 10 * time.Millisecond
	// enough is how many errors in a row that are final show that a call will not succeed.
	enough = 5
)

// certainty is what is known of a mount.
type certainty int

const (
	no certainty = iota
	maybe
	yes
)

// life is what the kubelet knows of one volume on the node, from the answers that it has got.
type life struct {
	running string
	staged  certainty
	targets map[string]certainty
}

// publishedAt lists the paths at which the volume is, or may be, published.
func (v *life) publishedAt() []string {
	var all []string
	for target, published := range v.targets {
		if published != no {
			all = append(all, target)
		}
	}
	return all
}

// callLog is a connection to the driver that notes the calls, checks them, and loses answers.
type callLog struct {
	conn   grpc.ClientConnInterface
	root   string
	stages bool

	mu       sync.Mutex
	lines    []string
	problems []string
	names    map[string]string
	lost     map[string]bool
	volumes  map[string]*life
	// failures counts final errors of a call in a row.
	failures map[request]int
	// mounts is true once the driver has mounted anything. bare are the answers before that by which a volume is published where nothing is mounted.
	mounts bool
	bare   map[string]request

	// broken is closed, by end, when the driver has done what is against the specification: nothing is waited for any more.
	broken chan struct{}
	end    func()
}

var _ grpc.ClientConnInterface = (*callLog)(nil)

func newCallLog(conn grpc.ClientConnInterface, root string) *callLog {
	l := &callLog{
		conn: conn, root: root, names: map[string]string{}, lost: map[string]bool{}, volumes: map[string]*life{},
		failures: map[request]int{}, bare: map[string]request{},
		broken: make(chan struct{}),
	}
	l.end = sync.OnceFunc(func() { close(l.broken) })
	return l
}

// request has the fields of requests about volumes; those that a request does not have are empty.
type request struct{ method, volume, staging, target string }

func read(method string, args any) request {
	r := request{method: path.Base(method)}
	if m, ok := args.(interface{ GetVolumeId() string }); ok {
		r.volume = m.GetVolumeId()
	}
	if m, ok := args.(interface{ GetStagingTargetPath() string }); ok {
		r.staging = m.GetStagingTargetPath()
	}
	if m, ok := args.(interface{ GetTargetPath() string }); ok {
		r.target = m.GetTargetPath()
	}
	return r
}

// Invoke implements grpc.ClientConnInterface.
func (l *callLog) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	r := read(method, args)
	if r.volume == "" {
		return l.conn.Invoke(ctx, method, args, reply, opts...)
	}
	l.begin(r)
	err := l.conn.Invoke(ctx, method, args, reply, opts...)
	if l.ended(r, err) {
		return status.Error(codes.Unavailable, "the answer was lost")
	}
	return err
}

// NewStream implements grpc.ClientConnInterface.
func (l *callLog) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return l.conn.NewStream(ctx, desc, method, opts...)
}

// patient repeats a call until the driver answers, as the components of the controller's side do: the driver may be starting, or die during the call.
type patient struct{ *callLog }

// Invoke implements grpc.ClientConnInterface.
func (p patient) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	for {
		err := p.callLog.Invoke(ctx, method, args, reply, append(opts, grpc.WaitForReady(true))...)
		if status.Code(err) != codes.Unavailable {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(unavailablePause):
		}
	}
}

// begin checks that the kubelet may make the call now.
func (l *callLog) begin(r request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.volume(r.volume)
	wrong := func(format string, args ...any) {
		l.problems = append(l.problems, "kubelet: "+l.describe(r)+": "+fmt.Sprintf(format, args...))
	}
	if v.running != "" {
		wrong("%s for the same volume has no answer yet", v.running)
	}
	v.running = r.method
	switch r.method {
	case "NodeStageVolume":
		if _, err := os.Stat(r.staging); err != nil {
			wrong("the staging path must exist: %v", err)
		}
		v.staged = max(v.staged, maybe)
	case "NodePublishVolume":
		if r.staging != "" && v.staged != yes {
			wrong("the volume is not staged")
		}
		if _, err := os.Stat(filepath.Dir(r.target)); err != nil {
			wrong("the directory of the target path must exist: %v", err)
		}
		v.targets[r.target] = max(v.targets[r.target], maybe)
	case "NodeUnstageVolume":
		for _, target := range v.publishedAt() {
			wrong("the volume is published at %s", l.short(r, target))
		}
		v.staged = min(v.staged, maybe)
	case "NodeUnpublishVolume":
		v.targets[r.target] = min(v.targets[r.target], maybe)
		l.mountedLate(r.target)
	}
}

// mountedLate checks that a target path at which nothing was mounted at the answer of NodePublishVolume has nothing now either.
func (l *callLog) mountedLate(target string) {
	if publish, bare := l.bare[target]; bare && mountsAt(target) > 0 {
		l.wrong(publish, "OK, but the volume was mounted only after the answer")
	}
	delete(l.bare, target)
}

// wrong notes that the driver has done what is against the specification, which the section of the method says.
func (l *callLog) wrong(r request, format string, args ...any) {
	l.problems = append(l.problems, fmt.Sprintf("driver: %s: %s (CSI v1.13, %q)", l.describe(r), fmt.Sprintf(format, args...), r.method))
	l.end()
}

// ended notes an answer, checks what the driver has promised by it, and reports whether it is to be lost.
func (l *callLog) ended(r request, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	lost := err == nil && l.lost[r.method]
	delete(l.lost, r.method)
	code := status.Code(err).String()
	if lost {
		code += ", lost"
	}
	l.lines = append(l.lines, l.describe(r)+" "+code)
	l.volume(r.volume).running = ""
	if class := outcome.Of(err); err != nil && !class.MayStillRun() && class != outcome.Exhausted {
		if l.failures[r]++; l.failures[r] == enough {
			l.wrong(r, "%d times in a row %v: what has happened already, or is not there any more, must be answered with OK when the call is repeated", enough, err)
		}
		return false
	}
	delete(l.failures, r)
	if err == nil && !lost {
		l.promised(r)
	}
	return lost
}

// promised notes what the answer OK says, and checks that it is true.
func (l *callLog) promised(r request) {
	v := l.volume(r.volume)
	switch r.method {
	case "NodeStageVolume":
		v.staged = yes
		l.mountedOnce(r, r.staging)
	case "NodePublishVolume":
		v.targets[r.target] = yes
		if _, err := os.Lstat(r.target); err != nil {
			l.wrong(r, "OK, but the target path is not there: %v", err)
		} else if !l.mountedOnce(r, r.target) && !isDevice(r.target) {
			l.bare[r.target] = r
		}
		if l.mounts {
			for target, publish := range l.bare {
				l.wrong(publish, "OK, but nothing is mounted at the target path")
				delete(l.bare, target)
			}
		}
	case "NodeUnpublishVolume":
		v.targets[r.target] = no
		if _, err := os.Lstat(r.target); err == nil {
			l.wrong(r, "OK, but the driver has not removed the target path")
		}
	case "NodeUnstageVolume":
		v.staged = no
		if mountsAt(r.staging) > 0 {
			l.wrong(r, "OK, but something is mounted at the staging path")
		}
	}
}

// mountedOnce reports whether something is mounted at a path, and checks that it is not more than one thing.
func (l *callLog) mountedOnce(r request, path string) bool {
	n := mountsAt(path)
	if n > 1 {
		l.wrong(r, "OK, but %d mounts are on top of each other at %s: a call that is repeated must mount nothing more", n, l.short(r, path))
	}
	l.mounts = l.mounts || n > 0
	return n > 0
}

// mountsAt counts the mounts at a path.
func mountsAt(path string) int {
	found, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != path, false })
	if err != nil {
		return 0
	}
	return len(found)
}

// isDevice reports whether a path is that of a device.
func isDevice(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&os.ModeDevice != 0
}

func (l *callLog) volume(handle string) *life {
	v := l.volumes[handle]
	if v == nil {
		v = &life{targets: map[string]certainty{}}
		l.volumes[handle] = v
	}
	return v
}

// describe is one line about a call, with names that do not depend on the run.
func (l *callLog) describe(r request) string {
	name := l.names[r.volume]
	if name == "" {
		name = r.volume
	}
	words := []string{r.method, name}
	if r.staging != "" {
		words = append(words, "staging="+l.short(r, r.staging))
	}
	if r.target != "" {
		words = append(words, "target="+l.short(r, r.target))
	}
	return strings.Join(words, " ")
}

// short is a path below the root directory.
func (l *callLog) short(r request, p string) string {
	p = strings.TrimPrefix(strings.TrimPrefix(p, l.root), "/")
	return strings.ReplaceAll(p, layout.StagingKey(r.volume), l.names[r.volume])
}

// name has a volume appear under a name.
func (l *callLog) name(handle, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names[handle] = name
}

func (l *callLog) lose(method string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost[method] = true
}

// pending reports whether an answer of the method is still to be lost.
func (l *callLog) pending(method string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost[method]
}

func (l *callLog) transcript() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n") + "\n"
}

func (l *callLog) violations() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.problems)
}
