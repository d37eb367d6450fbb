package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/seeds"
)

// embedEnv has the test program be the example.
const embedEnv = "EMBED_ARGS"

func TestMain(m *testing.M) {
	if args := os.Getenv(embedEnv); args != "" {
		os.Args = append(os.Args[:1], strings.Fields(args)...)
		main()
		return
	}
	m.Run()
}

// embedder runs the example beside a driver.
type embedder struct {
	t      *testing.T
	driver *csitest.Driver
	root   string
	args   string
}

// start starts it. Its output has the paths of the volumes.
func (e *embedder) start() (*exec.Cmd, io.Reader) {
	e.t.Helper()
	cmd := exec.CommandContext(e.t.Context(), os.Args[0]) //nolint:gosec // this very program
	cmd.Env, cmd.Stderr = append(os.Environ(), embedEnv+"="+e.args), os.Stderr
	output, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		e.t.Fatal(err)
	}
	return cmd, output
}

// mounted waits for the paths of both volumes.
func (e *embedder) mounted(output io.Reader) {
	e.t.Helper()
	lines := bufio.NewScanner(output)
	for range 2 {
		if !lines.Scan() {
			e.t.Fatalf("waited for the paths of two volumes: %v", lines.Err())
		}
	}
}

// TestKill kills the example at 200 random moments, while the driver fails now and then: nothing is unpublished under the workload, and nothing is left in the end.
func TestKill(t *testing.T) { seeds.Each(t, killAtRandom) }

func killAtRandom(t *testing.T, seed uint64) {
	t.Logf("SEED=%d go test -run '^TestKill$' . repeats this", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test wants to be repeated
	driver := csitest.New(csitest.Options{NodeID: "node", TargetPaths: true, Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}})
	driver.AddVolume(csitest.Volume{ID: "vol-1", Capacity: 1 << 30})
	root := t.TempDir()
	e := &embedder{t: t, driver: driver, root: root, args: fmt.Sprintf("--driver %s --endpoint %s --volume vol-1 --root %s", csitest.DefaultName, driver.Serve(t), root)}
	cmd, output := e.start()
	e.mounted(output)
	kill := func(cmd *exec.Cmd) {
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
	kill(cmd)
	began := time.Now()
	cmd, output = e.start()
	e.mounted(output)
	start := time.Since(began)
	kill(cmd)
	driver.ResetCalls()
	for range 200 {
		if random.IntN(3) == 0 {
			driver.Inject(csitest.Fault{Method: "NodePublishVolume", Code: []codes.Code{codes.Internal, codes.NotFound, codes.Unavailable}[random.IntN(3)], Times: 1})
		}
		cmd, _ := e.start()
		time.Sleep(time.Duration(random.Int64N(int64(start) + int64(start)/2)))
		kill(cmd)
	}
	driver.Heal()
	for _, c := range driver.Calls() {
		if strings.HasPrefix(c.Method, "NodeUn") {
			t.Errorf("%s was called under the workload", c.Method)
		}
	}
	t.Logf("%d calls to the driver in 200 lives of %v at most", len(driver.Calls()), (start + start/2).Round(time.Millisecond))
	cmd, output = e.start()
	e.mounted(output)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the example ended with %v", err)
	}
	for _, v := range driver.Volumes() {
		if len(v.Staged)+len(v.Published) > 0 {
			t.Errorf("left in the driver: %+v", v)
		}
	}
	for _, v := range driver.Violations() {
		t.Errorf("against the life cycle of CSI: %s", v)
	}
	for _, pattern := range []string{"pods/*", "plugins/kubernetes.io/csi/*/*"} {
		if left, err := filepath.Glob(filepath.Join(root, pattern)); err != nil || len(left) > 0 {
			t.Errorf("left is %v, %v", left, err)
		}
	}
}
