package drivertest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
)

// NodeID is the id of the node in all tests, for a driver that knows its nodes.
const NodeID = "drivertest-node"

// patience bounds what should take milliseconds.
const patience = 2 * time.Minute

// New makes a driver as a start of its process does. dir is an existing directory that represents the storage system: two drivers with the same dir have
// the same volumes, with another dir they have none in common. The tests set the options that a user has flags for. What New has to undo, such as a mount
// at dir or a server, is for t.Cleanup: dir is removed after that. New is called several times with one dir, and does once what is to be done once.
type New func(t testing.TB, dir string) (driverkit.Options, driverkit.Driver, error)

// Setting changes what Run does.
type Setting func(*settings)

type settings struct {
	new        New
	parameters map[string]string
	secrets    map[string]string
	// mutable are mutable parameters; none leaves modification out.
	mutable  map[string]string
	block    bool
	volatile bool
	// inline are the attributes of inline volumes; nil leaves them out.
	inline   map[string]string
	noSanity bool
	// otherNode is the id of a second node; empty leaves it out.
	otherNode string
	// ownLeaks finds what only the driver's author knows of.
	ownLeaks func(dir string) ([]string, error)
}

// Parameters are those of CreateVolume in all tests.
func Parameters(parameters map[string]string) Setting {
	return func(s *settings) { s.parameters = parameters }
}

// Secrets are those of all calls that have secrets.
func Secrets(secrets map[string]string) Setting { return func(s *settings) { s.secrets = secrets } }

// Block has the volumes of the tests be raw block devices.
func Block() Setting { return func(s *settings) { s.block = true } }

// NoSanity leaves csi-sanity out, for further calls of Run in one test program, such as with Block.
func NoSanity() Setting { return func(s *settings) { s.noSanity = true } }

// OtherNode is the id of a second node that the driver knows, on which no driver runs: volumes are attached to it, too.
func OtherNode(id string) Setting { return func(s *settings) { s.otherNode = id } }

// Leaks has find return what must not be left when all volumes of a storage system are deleted, such as objects of an array, sessions or devices. dir is that of New. Volumes and snapshots that the
// driver lists, mounts, records of the kit, and loop devices of files in dir are looked for in any case.
func Leaks(find func(dir string) ([]string, error)) Setting {
	return func(s *settings) { s.ownLeaks = find }
}

// Inline adds a walk with an inline volume, which has these attributes.
func Inline(attributes map[string]string) Setting {
	return func(s *settings) {
		s.inline = map[string]string{}
		maps.Copy(s.inline, attributes)
	}
}

// Run runs all tests of a driver as subtests of t. Where the driver's options have no Mounter, mounts are those of the kernel for root, and mount.Fake for
// others. csi-sanity can run only once in a process: a test program calls Run once without NoSanity.
func Run(t *testing.T, newDriver New, settingList ...Setting) {
	t.Helper()
	s := &settings{new: newDriver}
	for _, set := range settingList {
		set(s)
	}
	t.Run("Contract", s.contract)
	t.Run("Contents", s.contents)
	if !s.noSanity {
		t.Run("Sanity", s.sanity)
	}
	t.Run("Adoption", s.adoption)
	t.Run("Walk", s.walk)
	if s.inline != nil {
		t.Run("WalkInline", s.walkInline)
	}
}

// machine is a node with a storage system, on which a driver is started again and again.
type machine struct {
	t   testing.TB
	s   *settings
	dir string
	// mounts are those of a machine on which the tests may not mount.
	mounts *mount.Fake
	// options and driver are those of the last start.
	options driverkit.Options
	driver  driverkit.Driver
}

// newMachine makes a machine whose directories exist until the test ends.
func (s *settings) newMachine(t testing.TB) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "drv") // t.TempDir has a path that is too long for a socket.
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, s: s, dir: dir, mounts: &mount.Fake{}}
	t.Cleanup(m.clear)
	if err := os.Mkdir(m.path("storage"), 0o700); err != nil {
		t.Fatal(err)
	}
	m.create(nil)
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

// create makes the driver as its process does when it starts.
func (m *machine) create(faultPoint func(context.Context, string)) {
	m.t.Helper()
	o, d, err := m.s.new(m.t, m.path("storage"))
	if err != nil {
		m.t.Fatalf("make the driver: %v", err)
	}
	o.Endpoint, o.Mode, o.NodeID, o.StateDir, o.FaultPoint = "unix://"+m.path("csi.sock"), driverkit.ModeAll, NodeID, m.path("state"), faultPoint
	if o.Topology == nil {
		o.Topology = driverkit.Segments{}
	}
	for _, key := range o.TopologyKeys {
		if o.Topology[key] == "" {
			o.Topology[key] = "a"
		}
	}
	switch {
	case o.Mounter != nil:
	case os.Geteuid() == 0:
		o.Mounter = mount.Kernel{}
	default:
		o.Mounter, o.Filesystems = m.mounts, &filesystem.Fake{Mounts: m.mounts}
	}
	m.options, m.driver = o, d
}

// start serves the driver until stop is called, and returns a connection to it.
func (m *machine) start(faultPoint func(context.Context, string)) (conn *grpc.ClientConn, stop func()) {
	m.t.Helper()
	m.create(faultPoint)
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	ended := make(chan error, 1)
	go func() { ended <- driverkit.Serve(ctx, m.options, m.driver) }()
	conn, err := grpc.NewClient(m.options.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)), tryOften())
	if err != nil {
		m.t.Fatal(err)
	}
	return conn, func() {
		m.t.Helper()
		_ = conn.Close() // It has no calls.
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				m.t.Errorf("serve: %v", err)
			}
		case <-time.After(patience):
			m.t.Fatal("the driver does not stop")
		}
	}
}

// tryOften has a client connect within milliseconds after the driver listens; the default is a second.
func tryOften() grpc.DialOption {
	const pause = 2 * time.Millisecond
	return grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: pause, MaxDelay: pause}, MinConnectTimeout: patience})
}

// reboot unmounts everything that the driver mounted for workloads, and what the storage system mounted, and has the journal be of an earlier run of
// the machine.
func (m *machine) reboot() {
	m.t.Helper()
	records, err := filepath.Glob(m.path("state/journal/*.json"))
	if err != nil {
		m.t.Fatal(err)
	}
	for _, path := range records {
		text, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, regexp.MustCompile(`"boot": "[^"]*"`).ReplaceAll(text, []byte(`"boot": "an earlier one"`)), 0o600)
		}
		if err != nil {
			m.t.Fatal(err)
		}
	}
	for _, dir := range []string{m.path("co"), m.path("storage")} {
		m.unmountBelow(dir)
	}
}

func (m *machine) unmountBelow(dir string) {
	m.t.Helper()
	points, err := m.options.Mounter.Below(context.Background(), dir)
	if err != nil {
		m.t.Fatal(err)
	}
	for i := len(points) - 1; i >= 0; i-- {
		if err := m.options.Mounter.Unmount(context.Background(), points[i]); err != nil {
			m.t.Fatalf("unmount %s: %v", points[i], err)
		}
	}
}

// clear removes the machine.
func (m *machine) clear() {
	if m.options.Mounter != nil {
		m.reboot()
	}
	if err := os.RemoveAll(m.dir); err != nil {
		m.t.Errorf("clean up: %v", err)
	}
}

// leaks returns what is left of all volumes: mounts at paths of the CO, records of the node, and volumes of the storage system, if the driver lists them.
func (m *machine) leaks() (left []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	points, err := m.options.Mounter.Below(ctx, m.path("co"))
	if err != nil {
		return nil, err
	}
	for _, p := range points {
		left = append(left, "mount "+p)
	}
	records, err := filepath.Glob(m.path("state/journal/*.json"))
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		left = append(left, "record "+r)
	}
	listed, err := m.listed(ctx)
	if err != nil {
		return nil, err
	}
	left = append(left, listed...)
	devices, err := loopDevices(m.dir)
	if err == nil && m.s.ownLeaks != nil {
		var own []string
		own, err = m.s.ownLeaks(m.path("storage"))
		left = append(left, own...)
	}
	return append(left, devices...), err
}

// listed returns the volumes and snapshots that the driver lists.
func (m *machine) listed(ctx context.Context) (all []string, err error) {
	if m.driver.List != nil {
		volumes, err := m.driver.List(ctx, &driverkit.ListRequest{})
		if err != nil {
			return nil, fmt.Errorf("list volumes: %w", err)
		}
		for _, v := range volumes.Entries {
			all = append(all, "volume "+v.ID)
		}
	}
	if m.driver.ListSnapshots != nil {
		snapshots, err := m.driver.ListSnapshots(ctx, &driverkit.ListSnapshotsRequest{Secrets: m.s.secrets})
		if err != nil {
			return nil, fmt.Errorf("list snapshots: %w", err)
		}
		for _, s := range snapshots.Entries {
			all = append(all, "snapshot "+s.ID)
		}
	}
	return all, nil
}

// loopDevices returns the loop devices of the kernel that show a file in a directory.
func loopDevices(dir string) (found []string, err error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		shown, err := os.ReadFile(file)
		if err == nil && strings.HasPrefix(string(shown), dir+"/") { // an error is that it has gone
			found = append(found, fmt.Sprintf("device %s of %s", strings.Split(file, "/")[3], strings.TrimSpace(string(shown))))
		}
	}
	return found, err
}

// checkLeaks fails the test where something is left.
func (m *machine) checkLeaks(t testing.TB) {
	t.Helper()
	left, err := m.leaks()
	if err != nil {
		t.Errorf("look for leaks: %v", err)
	}
	for _, l := range left {
		t.Errorf("left behind: %s", l)
	}
}
