package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/longshore-csi/longshore/e2e/recorder/record"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// kubeletNodeEnv is the environment variable that names a node of a kind cluster, which is a container, for tests of its kubelet.
const kubeletNodeEnv = "E2E_KUBELET_NODE"

// kubeletNode is a node whose kubelet is compared: csi-node-agent on a development cluster, the real one in a container of kind.
type kubeletNode struct {
	t testing.TB
	*testbed.Bed
	name string
	// root is the root directory of the kubelet.
	root string
	// on is what a command on the node begins with.
	on []string
	// recorder is the path of that program on the node.
	recorder string
}

// newKubeletNode skips a test on clusters without such a node.
func newKubeletNode(t *testing.T) *kubeletNode {
	t.Helper()
	n := &kubeletNode{t: t, Bed: bed, name: os.Getenv(kubeletNodeEnv), root: "/var/lib/kubelet"}
	switch {
	case bed.Dev != nil:
		n.name = bed.Dev.Nodes[0]
		n.root = bed.Dev.NodeDirs[n.name]
	case n.name == "":
		t.Skip("needs a development cluster, or the name of a node of a kind cluster in " + kubeletNodeEnv)
	default:
		n.on = []string{"docker", "exec", "--interactive", n.name}
	}
	n.recorder = n.install("e2e", "./recorder")
	return n
}

// agent reports whether the node has csi-node-agent, not a kubelet.
func (n *kubeletNode) agent() bool { return n.Dev != nil }

// install builds a program of a module and brings it to the node.
func (n *kubeletNode) install(module, pkg string) (program string) {
	n.t.Helper()
	program = filepath.Join(n.t.TempDir(), filepath.Base(pkg))
	testbed.Build(n.t, program, module, pkg)
	if n.on == nil {
		return program
	}
	there := "/usr/local/bin/" + filepath.Base(pkg)
	if out, err := exec.Command("docker", "cp", program, n.name+":"+there).CombinedOutput(); err != nil {
		n.t.Fatalf("copy %s to node %s: %v\n%s", program, n.name, err, out)
	}
	return there
}

// command is a command on the node.
func (n *kubeletNode) command(ctx context.Context, args ...string) *exec.Cmd {
	args = append(n.on[:len(n.on):len(n.on)], args...)
	return exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // commands of the tests
}

// run runs a command on the node and returns its output.
func (n *kubeletNode) run(ctx context.Context, args ...string) (string, error) {
	out, err := n.command(ctx, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%q on %s: %w: %s", args, n.name, err, out)
	}
	return string(out), nil
}

// restart kills the kubelet, which is started again.
func (n *kubeletNode) restart(ctx context.Context) error {
	if n.agent() {
		return n.Dev.Signal(ctx, "csi-node-agent."+n.name, "KILL")
	}
	_, err := n.run(ctx, "systemctl", "kill", "--signal=KILL", "kubelet")
	return err
}

// stopKubelet stops the kubelet; its pods go on.
func (n *kubeletNode) stopKubelet(ctx context.Context) error {
	if n.agent() {
		return n.Dev.Hold(ctx, "csi-node-agent."+n.name)
	}
	_, err := n.run(ctx, "systemctl", "stop", "kubelet")
	return err
}

// startKubelet lets the kubelet run again.
func (n *kubeletNode) startKubelet(ctx context.Context) error {
	if n.agent() {
		return n.Dev.Release(ctx, "csi-node-agent."+n.name)
	}
	_, err := n.run(ctx, "systemctl", "start", "kubelet")
	return err
}

// recording is a driver that runs on the node, through all its processes.
type recording struct {
	node   *kubeletNode
	config record.Config
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr bytes.Buffer
	// answers has an element for each answer to a fault, and is closed when the process has ended.
	answers chan struct{}

	mu    sync.Mutex
	calls []record.Call
}

// record runs a driver until the test ends.
func (n *kubeletNode) record(t testing.TB, config record.Config) *recording {
	t.Helper()
	config.Node, config.Root = n.name, n.root
	r := &recording{node: n, config: config}
	if err := r.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.kill()
		if _, err := n.run(context.Background(), "rm", "-rf", "--one-file-system", config.RegistrationSocket(), config.Dir()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the driver says: %s", &r.stderr)
		}
	})
	return r
}

func (r *recording) start() error {
	text, err := json.Marshal(r.config)
	if err != nil {
		return err
	}
	r.cmd = r.node.command(context.Background(), r.node.recorder, string(text))
	r.cmd.Stderr = &r.stderr
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if r.stdin, err = r.cmd.StdinPipe(); err != nil {
		return err
	}
	r.answers = make(chan struct{}, 1)
	go r.follow(stdout)
	return r.cmd.Start()
}

// follow reads calls until the driver ends.
func (r *recording) follow(stdout io.Reader) {
	defer close(r.answers)
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var call record.Call
		if err := json.Unmarshal(lines.Bytes(), &call); err != nil {
			call.Method = fmt.Sprintf("%q: %v", lines.Text(), err)
		}
		if call.Method == "" {
			r.answers <- struct{}{}
			continue
		}
		r.mu.Lock()
		r.calls = append(r.calls, call)
		r.mu.Unlock()
	}
}

// kill ends the process of the driver, which leaves its sockets behind.
func (r *recording) kill() {
	_ = r.stdin.Close()
	for range r.answers { // until all is read
	}
	_ = r.cmd.Wait()
}

// fail has calls fail from now on.
func (r *recording) fail(f record.Fault) error {
	line, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if _, err := r.stdin.Write(append(line, '\n')); err != nil {
		return err
	}
	select {
	case <-r.answers: // or the process has ended
		return nil
	case <-time.After(testbed.Patience):
		return fmt.Errorf("the driver does not answer to %s", line)
	}
}

// readAll returns when all calls are read that were made until now. A process that has ended makes none.
func (r *recording) readAll() error {
	if err := r.fail(record.Fault{}); !errors.Is(err, os.ErrClosed) && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	return nil
}

// since returns the calls after the first n.
func (r *recording) since(n int) []record.Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]record.Call(nil), r.calls[n:]...)
}
