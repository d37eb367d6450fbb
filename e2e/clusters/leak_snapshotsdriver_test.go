package clusters

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

const (
	// driverTimeout is the deadline of calls to the driver.
	driverTimeout = 3 * time.Second
	// longestWork is the longest time that the driver works on behind the end of a call: less than the deadline of a call, after which an answer
	// that comes again may be believed.
	longestWork = 2 * time.Second
)

// snapshotFaults is a driver of snapshots that ends calls in all ways.
type snapshotFaults struct {
	*csitest.Driver
	l             *snapshotLeaks
	name, address string
	stop          func()

	mu sync.Mutex
	// late has the requests that the driver is still working on although it has ended their calls, by name.
	late map[string]proto.Message
	// healed: no work begins any more that goes on behind the end of its call.
	healed bool
	// gone are the volumes that were deleted while the driver was working on their snapshots.
	gone []string
}

// newSnapshotFaults starts the driver.
func newSnapshotFaults(l *snapshotLeaks, name string) *snapshotFaults {
	l.T.Helper()
	f := &snapshotFaults{l: l, name: name, address: filepath.Join(l.T.TempDir(), "csi.sock"), late: map[string]proto.Message{}}
	f.Driver = csitest.New(csitest.Options{
		Name: name, Node: []csi.NodeServiceCapability_RPC_Type{}, SnapshotReadyAfter: 1,
		Controller: append(csitest.AllController(), csitest.AllSnapshots()...), GroupController: csitest.AllGroupController(),
	})
	for _, method := range []string{"CreateSnapshot", "CreateVolumeGroupSnapshot"} {
		f.Inject(csitest.Fault{Method: method, Match: f.ending, Code: codes.Internal})
		f.Inject(csitest.Fault{Method: method, Match: f.working, Code: codes.Aborted})
		f.Inject(csitest.Fault{Method: method, Match: f.fault("hang", 10), After: true, Hang: true})
		f.Inject(csitest.Fault{Method: method, Match: f.fault("lost", 5), After: true, Code: codes.Unavailable})
		f.Inject(csitest.Fault{Method: method, Match: f.begin, Code: codes.DeadlineExceeded})
		f.Inject(csitest.Fault{Method: method, Match: f.refused, Code: codes.Internal})
	}
	for _, method := range []string{"DeleteSnapshot", "DeleteVolumeGroupSnapshot"} {
		f.Inject(csitest.Fault{Method: method, Match: f.fault("deletion lost", 5), After: true, Code: codes.Unavailable})
		f.Inject(csitest.Fault{Method: method, Match: f.fault("deletion refused", 10), Code: codes.FailedPrecondition})
	}
	f.stop = f.ServeAt(l.T, f.address)
	return f
}

// nameOf returns the name of the snapshot that is to be taken, or "".
func nameOf(request proto.Message) string {
	switch r := request.(type) {
	case *csi.CreateSnapshotRequest:
		return r.GetName()
	case *csi.CreateVolumeGroupSnapshotRequest:
		return r.GetName()
	}
	return ""
}

// exists reports whether the snapshot of a request was taken before.
func (f *snapshotFaults) exists(name string) bool {
	return slices.ContainsFunc(f.Snapshots(), func(s csitest.Snapshot) bool { return s.Name == name }) ||
		slices.ContainsFunc(f.GroupSnapshots(), func(g csitest.GroupSnapshot) bool { return g.Name == name })
}

// fault returns the condition of a fault, which matches every so many calls.
func (f *snapshotFaults) fault(kind string, of int) func(proto.Message) bool {
	return func(proto.Message) bool {
		if f.isHealed() || !f.l.random.once(of) {
			return false
		}
		f.l.counts.add(kind)
		return true
	}
}

// refused matches every tenth request for a new snapshot. Of one that was taken a driver does not say that it cannot be.
func (f *snapshotFaults) refused(request proto.Message) bool {
	return !f.exists(nameOf(request)) && f.fault("refused", 10)(request)
}

// begin matches every fifth request for a new snapshot: the driver begins to work on it, and says that it has not come to an end. It does not for
// a volume that is gone: a claim that is being deleted waits for no snapshot that was refused, and this is asked for again.
func (f *snapshotFaults) begin(request proto.Message) bool {
	name := nameOf(request)
	if f.exists(name) || !f.hasVolumes(request) || !f.l.random.once(5) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.healed {
		return false
	}
	f.late[name] = proto.Clone(request)
	time.AfterFunc(f.l.random.upTo(longestWork), func() { f.finish(name) })
	f.l.counts.add("late")
	return true
}

// hasVolumes reports whether there are the volumes that a snapshot is to be taken of.
func (f *snapshotFaults) hasVolumes(request proto.Message) bool {
	volumes := f.Volumes()
	return !slices.ContainsFunc(sourcesOf(request), func(id string) bool {
		return !slices.ContainsFunc(volumes, func(v csitest.Volume) bool { return v.ID == id })
	})
}

// sourcesOf returns the volumes that a snapshot is to be taken of.
func sourcesOf(request proto.Message) []string {
	switch r := request.(type) {
	case *csi.CreateSnapshotRequest:
		return []string{r.GetSourceVolumeId()}
	case *csi.CreateVolumeGroupSnapshotRequest:
		return r.GetSourceVolumeIds()
	}
	return nil
}

// working matches the requests that the driver is still working on.
func (f *snapshotFaults) working(request proto.Message) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.late[nameOf(request)] != nil
}

// ending matches every other one of them: their calls end with an error that is final for most, and says nothing about the work.
func (f *snapshotFaults) ending(request proto.Message) bool {
	if !f.working(request) || f.l.random.once(2) {
		return false
	}
	f.l.counts.add("uncertain then final")
	return true
}

// finish ends the work on a snapshot.
func (f *snapshotFaults) finish(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	switch r := f.late[name].(type) {
	case *csi.CreateSnapshotRequest:
		_, err = f.CreateSnapshot(context.Background(), r)
	case *csi.CreateVolumeGroupSnapshotRequest:
		_, err = f.CreateVolumeGroupSnapshot(context.Background(), r)
	}
	if err != nil {
		f.gone = append(f.gone, sourcesOf(f.late[name])...)
	}
	delete(f.late, name)
}

// crash ends the driver and starts it again.
func (f *snapshotFaults) crash() {
	f.stop()
	f.stop = f.ServeAt(f.l.T, f.address)
	f.l.counts.add("crash of the driver")
}

func (f *snapshotFaults) isHealed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.healed
}

// heal ends all faults, and what the driver still works on.
func (f *snapshotFaults) heal() {
	f.mu.Lock()
	f.healed = true
	names := slices.Collect(maps.Keys(f.late))
	f.mu.Unlock()
	for _, name := range names {
		f.finish(name)
	}
	f.Heal()
}

// volumesGone are the volumes that were deleted while the driver was working on their snapshots.
func (f *snapshotFaults) volumesGone() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.gone)
}
