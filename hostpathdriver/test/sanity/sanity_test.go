package sanity

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	csisanity "github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver"
	"github.com/longshore-csi/longshore/hostpathdriver/loop"
)

const nodeID = "sanity-node"

// programEnv is the environment variable with the path of a hostpathplugin, of another architecture for instance, that is tested in place of the package in the
// configuration without further flags.
const (
	programEnv           = "SANITY_PROGRAM"
	programConfiguration = "mounts of the kernel"
)

// configuration is one way to run the driver. The whole suite runs for each.
type configuration struct {
	name string
	// options changes the defaults of every instance.
	options func(*hostpathdriver.Options)
	// split runs a controller and a node instance on two sockets.
	split bool
	// limit runs the spec that attaches volumes until the node is full.
	limit bool
	// kernel makes real mounts and devices, which needs root.
	kernel bool
	// mutable are parameters that the suite modifies.
	mutable map[string]string
	// block runs the suite on devices, and not on directories.
	block bool
	// image runs it on file systems of their own, by the parameter "backend".
	image bool
	// pool keeps all in the directory of a pool.
	pool bool
}

func configurations() []configuration {
	return []configuration{
		{name: "defaults", options: func(*hostpathdriver.Options) {}},
		{name: "modification", block: true, mutable: map[string]string{"iops": "100", "readAheadKiB": "1024"}, options: func(o *hostpathdriver.Options) {
			o.Modify, o.MutableParameters = true, []string{"iops"}
		}},
		{name: "attach, limit and pools", limit: true, options: func(o *hostpathdriver.Options) {
			o.Attach = true
			o.AttachLimit = 3
			o.Capacity = map[string]int64{"fast": 100 << 30, "slow": 1 << 40}
		}},
		{name: "split sockets, attach", split: true, options: func(o *hostpathdriver.Options) { o.Attach = true }},
		{name: "expansion by the controller alone, images", image: true, split: true, options: func(o *hostpathdriver.Options) { o.NoNodeExpansion = true }},
		{name: "expansion by the node alone, images", image: true, split: true, options: func(o *hostpathdriver.Options) { o.NoControllerExpansion = true }},
		{name: "offline expansion", options: func(o *hostpathdriver.Options) { o.OfflineExpansion = true }},
		{name: "no expansion", options: func(o *hostpathdriver.Options) { o.Expansion = false }},
		{name: "condition of CSI v1.12", options: func(o *hostpathdriver.Options) { o.VolumeCondition = true }},
		{name: "no topology", options: func(o *hostpathdriver.Options) { o.Topology = false }},
		{name: programConfiguration, kernel: true, options: func(*hostpathdriver.Options) {}},
		{name: "block", block: true, options: func(*hostpathdriver.Options) {}},
		{name: "block, split sockets, attach", block: true, split: true, options: func(o *hostpathdriver.Options) { o.Attach = true }},
		{name: "block, devices of the kernel", block: true, kernel: true, options: func(*hostpathdriver.Options) {}},
		{name: "images", image: true, options: func(*hostpathdriver.Options) {}},
		{name: "images, split sockets, attach", image: true, split: true, options: func(o *hostpathdriver.Options) { o.Attach = true }},
		{name: "images, file systems of the kernel", image: true, kernel: true, options: func(*hostpathdriver.Options) {}},
		{name: "pool with a directory, images", pool: true, image: true, options: func(*hostpathdriver.Options) {}},
		{name: "no list of snapshots", options: func(o *hostpathdriver.Options) { o.ListSnapshots = false }},
		{name: "snapshot metadata", block: true, options: func(o *hostpathdriver.Options) { o.SnapshotMetadata = true }},
	}
}

// TestSanity runs csi-sanity in every configuration, and then looks for what
// the suite does not look for: volumes, records and mounts left behind.
func TestSanity(t *testing.T) {
	gomega.RegisterFailHandler(ginkgo.Fail)
	var running []*instance
	for _, c := range configurations() {
		if c.kernel && os.Geteuid() != 0 {
			t.Logf("configuration %q is left out: mounts need root", c.name)
			continue
		}
		if os.Getenv(programEnv) != "" && c.name != programConfiguration {
			continue
		}
		running = append(running, start(t, c))
	}
	ginkgo.ReportAfterSuite("count", func(report ginkgo.Report) { compareTable(t, countSpecs(report)) })
	suite, reporter := ginkgo.GinkgoConfiguration()
	reporter.NoColor, reporter.Succinct = true, true
	ginkgo.RunSpecs(t, "CSI sanity", suite, reporter)
	for _, i := range running {
		i.checkNothingLeft(t)
	}
}

// instance is a running driver and its part of the suite.
type instance struct {
	name     string
	stateDir string
	mounter  *mount.Fake
	devices  *loop.Fake
}

func start(t *testing.T, c configuration) *instance {
	t.Helper()
	dir := shortDir(t)
	i := &instance{name: c.name, stateDir: filepath.Join(dir, "state")}
	options := hostpathdriver.NewOptions()
	options.StateDir = i.stateDir
	options.NodeID = nodeID
	if !c.kernel {
		i.mounter, i.devices = &mount.Fake{}, &loop.Fake{Dir: filepath.Join(dir, "dev")}
		options.Mounter, options.Devices = i.mounter, i.devices
		i.devices.HoldMounted(i.mounter.HasFilesystem)
		options.Filesystems = &filesystem.Fake{Mounts: i.mounter, Look: i.devices.Look}
		if err := os.Mkdir(i.devices.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c.options(&options)
	if c.pool {
		options.PoolDirs = map[string]string{"pool": filepath.Join(dir, "pool")}
		if err := os.Mkdir(options.PoolDirs["pool"], 0o700); err != nil {
			t.Fatal(err)
		}
	}

	config := csisanity.NewTestConfig()
	config.TargetPath = filepath.Join(dir, "target")
	config.StagingPath = filepath.Join(dir, "staging")
	config.TestNodeVolumeAttachLimit = c.limit
	config.TestVolumeMutableParameters = c.mutable
	if c.block {
		config.TestVolumeAccessType = "block"
	}
	if c.image {
		config.TestVolumeParameters = map[string]string{"backend": "image"}
	}
	config.DialOptions = append(config.DialOptions, grpc.WithUnaryInterceptor(cacheSizes))
	config.ControllerDialOptions = append(config.ControllerDialOptions, grpc.WithUnaryInterceptor(cacheSizes))
	config.Address = filepath.Join(dir, "csi.sock")
	if c.split {
		config.ControllerAddress = filepath.Join(dir, "controller.sock")
		run(t, options, hostpathdriver.ModeController, config.ControllerAddress)
		run(t, options, hostpathdriver.ModeNode, config.Address)
	} else {
		run(t, options, hostpathdriver.ModeAll, config.Address)
	}
	ginkgo.Describe(c.name, func() { csisanity.GinkgoTest(&config) })
	return i
}

// cacheSizes computes the size caches of an answer. The suite compares messages field
// by field, caches included, and a topology that was sent in a request has them.
func cacheSizes(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := call(ctx, method, req, reply, conn, opts...)
	if made, ok := reply.(*csi.CreateSnapshotResponse); ok {
		proto.Size(made)
	}
	return err
}

// shortDir is a temporary directory whose sockets fit into a socket address.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sanity") // t.TempDir has a path too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return dir
}

// run runs an instance of the driver until the test ends. The suite waits for
// its socket.
func run(t *testing.T, options hostpathdriver.Options, mode hostpathdriver.Mode, socket string) {
	t.Helper()
	options.Mode = mode
	options.Endpoint = "unix://" + socket
	if program := os.Getenv(programEnv); program != "" {
		runProgram(t, program, options)
		return
	}
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	done := make(chan error, 1)
	go func() { done <- hostpathdriver.Run(ctx, options) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("driver in mode %s: %v", mode, err)
		}
	})
}

// runProgram is run for a program.
func runProgram(t *testing.T, program string, o hostpathdriver.Options) {
	t.Helper()
	var log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, "--endpoint="+o.Endpoint, "--statedir="+o.StateDir, "--nodeid="+o.NodeID, "--mode="+string(o.Mode))
	cmd.Stderr = &log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 0 || t.Failed() {
			t.Errorf("%s ended with %v:\n%s", program, err, &log)
		}
	})
}

// checkNothingLeft looks at the disk and at the mount table. The suite deletes
// every volume that it makes.
func (i *instance) checkNothingLeft(t *testing.T) {
	t.Helper()
	var left []string
	for _, pattern := range []string{"records/*.json", "volumes/*", "trash/*", "snapshot-records/*.json", "snapshots/*", "group-records/*.json", "copies/*", "nodes/*/uses/*.json", "nodes/*/journal/*.json", "nodes/*/volumes/*", "nodes/*/trash/*", "../pool/*/*/*"} {
		found, err := filepath.Glob(filepath.Join(i.stateDir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, found...)
	}
	if i.mounter != nil {
		left = append(left, i.mounter.Targets()...)
		for _, d := range i.devices.Table() {
			left = append(left, d.Path)
		}
	}
	if diff := cmp.Diff([]string(nil), left); diff != "" {
		t.Error(fmt.Sprintf("%s: left behind (-want +got):\n", i.name) + diff)
	}
}
