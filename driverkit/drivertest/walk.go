package drivertest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/mount"
)

// fate is what happens at a fault point.
type fate string

const (
	// kill ends the process: the call does nothing more, and the CO gets no answer.
	kill fate = "kill"
	// reboot ends the process, and all mounts are gone when it starts again.
	reboot fate = "reboot"
	// deadline lets the call's deadline pass at the point: the driver sees it, and may undo its work.
	deadline fate = "deadline"
)

// Volatile says that volumes do not survive a restart of the machine: the walk then restarts the driver alone.
func Volatile() Setting { return func(s *settings) { s.volatile = true } }

// Mutable are mutable parameters that volumes can be given; the walk modifies its volume to have them.
func Mutable(parameters map[string]string) Setting {
	return func(s *settings) { s.mutable = parameters }
}

// walk lets a CO bring a volume from its creation to its deletion, with a snapshot of it, a volume restored from that, and an expansion, with one fault per
// life: at each fault point, with each fate. The CO then retries its call, or gives the volume up. At the end nothing may be left. With -short each point has
// one of these in turn.
func (s *settings) walk(t *testing.T) {
	p := path{
		// The second publication must find what was written in the first.
		forth: []string{"create", "attach", "stage", "publish", "stats", "snapshot", "expand", "expandOnNode", "modify", "unpublish", "unstage", "stage", "publish", "restore"},
		back:  []string{"unpublish", "unstage", "detach", "deleteRestored", "deleteSnapshot", "delete"}, last: "DeleteVolume:done",
	}
	if s.block && s.servesReadOnlyDevices(t) {
		p.forth[slices.Index(p.forth, "restore")-1] = "publishReadOnly"
		p.back = append([]string{"unpublishReadOnly"}, p.back...)
	}
	s.walkOf(t, p)
}

// servesReadOnlyDevices reports whether raw block volumes are published read-only, too.
func (s *settings) servesReadOnlyDevices(t *testing.T) bool {
	t.Helper()
	return s.newMachine(t).driver.ReadOnlyDevice != nil
}

// walkInline is walk for an inline volume.
func (s *settings) walkInline(t *testing.T) {
	s.walkOf(t, path{forth: []string{"publishInline", "stats"}, back: []string{"unpublish"}, last: "NodeUnpublishVolume:done"})
}

// path is the calls of a CO for one volume, and the last fault point.
type path struct {
	forth, back []string
	last        string
}

func (s *settings) walkOf(t *testing.T, p path) {
	points := s.points(t, p)
	t.Logf("%d fault points: %q", len(points), points)
	fates := []fate{kill, reboot, deadline}
	if s.volatile {
		fates = []fate{kill, deadline}
	}
	for n, point := range points {
		for i, f := range fates {
			for j, givesUp := range []bool{false, true} {
				if testing.Short() && (i != n/2%len(fates) || j != n%2) {
					continue
				}
				name := fmt.Sprintf("%02d/%s/%s/retry", n, point, f)
				if givesUp {
					name = fmt.Sprintf("%02d/%s/%s/give_up", n, point, f)
				}
				t.Run(name, func(t *testing.T) { s.live(t, p, &fault{at: n, fate: f}, givesUp) })
			}
		}
	}
}

// points returns the fault points of an undisturbed life.
func (s *settings) points(t *testing.T, p path) []string {
	t.Helper()
	none := &fault{at: -1}
	s.live(t, p, none, false)
	if len(none.passed) == 0 {
		t.Fatal("the driver has no fault points")
	}
	return none.passed
}

// fault is what goes wrong in a life.
type fault struct {
	at   int
	fate fate

	mu sync.Mutex
	// passed are the points so far; the one of index at is the fault.
	passed []string
	// happened and handled say how far it is.
	happened, handled bool
	// cancel ends the CO's present call.
	cancel context.CancelFunc
}

// killed is the value of the panic that ends a call.
type killed struct{}

// point is driverkit.Options.FaultPoint.
func (f *fault) point(ctx context.Context, name string) {
	f.mu.Lock()
	f.passed = append(f.passed, name)
	now := len(f.passed)-1 == f.at
	f.happened = f.happened || now
	cancel := f.cancel
	f.mu.Unlock()
	switch {
	case !now:
	case f.fate == deadline:
		cancel()
		<-ctx.Done()
	default:
		panic(killed{})
	}
}

// begin says which call of the CO may be the one of the fault.
func (f *fault) begin(cancel context.CancelFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cancel = cancel
}

// happenedNow reports once that the fault has happened.
func (f *fault) happenedNow() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.happened && !f.handled
	f.handled = f.happened
	return now
}

// life is that of one volume.
type life struct {
	t    *testing.T
	m    *machine
	co   *co
	stop func()
	f    *fault
	path path
	// wrote says that the volume has a file.
	wrote bool
}

// live lets a CO lead a volume through its life, with a fault.
func (s *settings) live(t *testing.T, p path, f *fault, givesUp bool) {
	t.Helper()
	l := s.newLife(t, p, f)
	defer func() { l.stop() }()
	l.lead(givesUp)
	l.checkDeleted()
	l.m.checkLeaks(t)
}

// newLife starts a driver for a volume that does not exist yet.
func (s *settings) newLife(t *testing.T, p path, f *fault) *life {
	t.Helper()
	m := s.newMachine(t)
	if err := os.Mkdir(m.path("co"), 0o700); err != nil {
		t.Fatal(err)
	}
	l := &life{t: t, m: m, f: f, path: p, co: &co{s: s, staging: m.path("co/staging"), target: m.path("co/pod/target"), readOnly: m.path("co/pod/read-only")}}
	l.start()
	return l
}

func (l *life) start() {
	l.t.Helper()
	conn, stop := l.m.start(l.f.point)
	l.stop = stop
	if err := l.co.connect(l.t.Context(), conn); err != nil {
		l.t.Fatalf("connect: %v", err)
	}
}

// lead makes all calls of a life. After a fault the CO retries, begins again where mounts are gone, or gives up and undoes what may be done.
func (l *life) lead(givesUp bool) {
	forth, back := l.path.forth, l.path.back
	for i := 0; i < len(forth); i++ {
		if !l.call(forth[i]) {
			if strings.HasPrefix(forth[i], "publish") {
				l.checkPublished(forth[i])
			}
			continue
		}
		switch {
		case givesUp && !slices.Contains([]string{"create", "snapshot", "restore"}, forth[i]): // A CO does not know an object before the call that makes it has answered.
			i = len(forth)
		case l.f.fate == reboot && i > 0:
			i = 0 // A restarted node stages and publishes again.
		default:
			i--
		}
	}
	for _, name := range back {
		for l.call(name) {
		}
	}
}

// call makes one call of the CO, and reports whether the fault happened in it. Without a fault it must succeed.
func (l *life) call(name string) (faulty bool) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	l.f.begin(cancel)
	err := l.co.calls()[name](ctx)
	if !l.f.happenedNow() {
		if err != nil {
			l.t.Fatalf("%s: %v", name, err)
		}
		return false
	}
	if l.f.fate != deadline {
		l.stop()
		if l.f.fate == reboot {
			l.m.reboot()
		}
		l.start()
	}
	return true
}

// checkPublished looks at the target path of a call.
func (l *life) checkPublished(call string) {
	l.t.Helper()
	target := l.co.target
	if call == "publishReadOnly" {
		target = l.co.readOnly
	}
	mounted, err := l.m.options.Mounter.Mounted(l.t.Context(), target)
	if err != nil || !mounted {
		l.t.Errorf("published, and mounted at the target path: %t, %v", mounted, err)
	}
	if _, kernel := l.m.options.Mounter.(mount.Kernel); !kernel || l.m.s.block {
		return
	}
	const contents = "contents"
	file := filepath.Join(l.co.target, "file")
	if !l.wrote {
		if err := os.WriteFile(file, []byte(contents), 0o600); err != nil {
			l.t.Errorf("write a file: %v", err)
		}
		l.wrote = true
		return
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != contents {
		l.t.Errorf("a file that was written when the volume was published before has %q, %v", text, err)
	}
}

// checkDeleted looks for what a volume's life must not leave, beside leaks.
func (l *life) checkDeleted() {
	l.t.Helper()
	for _, target := range []string{l.co.target, l.co.readOnly} {
		if _, err := os.Lstat(target); !errors.Is(err, fs.ErrNotExist) {
			l.t.Errorf("the target path %s still exists: %v", target, err)
		}
	}
	_, err := l.m.driver.Provisioner.Get(l.t.Context(), &driverkit.GetRequest{ID: l.co.volume, Secrets: l.m.s.secrets})
	if !driverkit.IsNotFound(err, l.co.volume) {
		l.t.Errorf("get volume %q after its deletion: %v, want driverkit.NotFound of it", l.co.volume, err)
	}
	if !slices.Contains(l.f.passed, l.path.last) {
		l.t.Errorf("the fault points %q have no %s", l.f.passed, l.path.last)
	}
}

// connection is what a CO needs of a connection.
type connection = grpc.ClientConnInterface
