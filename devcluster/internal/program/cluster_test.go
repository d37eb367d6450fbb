package program

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/longshore-csi/longshore/devcluster"
	"github.com/longshore-csi/longshore/devcluster/internal/clean"
)

// patience only ends a test that would hang; nothing takes that long.
const patience = 3 * time.Minute

// cluster is the directory of a cluster and the program that runs it.
type cluster struct {
	t   *testing.T
	dir string
}

// newCluster names a directory that is short enough for sockets. After the test nothing of the cluster may be there: what a
// failed test leaves is taken down.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	work, err := os.MkdirTemp("", "dc-")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, dir: filepath.Join(work, "c")}
	t.Cleanup(func() {
		c.run("down")
		c.nothingLeft()
		if err := os.Remove(work); err != nil {
			t.Errorf("something is left beside the cluster: %v", err)
		}
	})
	return c
}

// result is what a run of the program came to.
type result struct {
	stdout, stderr string
	code           int
}

func (c *cluster) command(ctx context.Context, args ...string) *exec.Cmd {
	args = append(slices.Clone(args), "--dir", c.dir)
	cmd := exec.CommandContext(ctx, built.devcluster, args...)
	cmd.Dir = "../.." // inside the checkout: pins and examples are found from here
	return cmd
}

// run runs the program to its end.
func (c *cluster) run(args ...string) result {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.finish(c.command(ctx, args...))
}

func (c *cluster) finish(cmd *exec.Cmd) result {
	c.t.Helper()
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.t.Fatalf("%q: %v", cmd.Args, err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// mustRun runs the program and wants it to end well.
func (c *cluster) mustRun(args ...string) result {
	c.t.Helper()
	r := c.run(args...)
	if r.code != 0 {
		c.t.Fatalf("devcluster %q ended with %d\n%s%s", args, r.code, r.stdout, r.stderr)
	}
	return r
}

// mustFail runs the program and wants an exit code of 1 and a message that contains every one of the words.
func (c *cluster) mustFail(args []string, words ...string) result {
	c.t.Helper()
	r := c.run(args...)
	if r.code != 1 {
		c.t.Fatalf("devcluster %q ended with %d, want 1\n%s%s", args, r.code, r.stdout, r.stderr)
	}
	for _, word := range words {
		if !strings.Contains(r.stderr, word) {
			c.t.Errorf("devcluster %q: the error lacks %q:\n%s", args, word, r.stderr)
		}
	}
	return r
}

// interrupt runs the program until it has printed a line with the word, sends SIGINT and waits for the end.
func (c *cluster) interrupt(word string, args ...string) result {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := c.command(ctx, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	var stdout strings.Builder
	sent := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		stdout.WriteString(lines.Text() + "\n")
		if !sent && strings.Contains(lines.Text(), word) {
			sent = true
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait() // its exit code is part of the result
	if !sent {
		c.t.Fatalf("devcluster %q never said %q:\n%s%s", args, word, &stdout, &stderr)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// status is what `status --output json` prints.
func (c *cluster) status() devcluster.Status {
	c.t.Helper()
	var s devcluster.Status
	if err := json.Unmarshal([]byte(c.mustRun("status", "--output", "json").stdout), &s); err != nil {
		c.t.Fatal(err)
	}
	return s
}

func (c *cluster) process(name string) devcluster.Process {
	c.t.Helper()
	s := c.status()
	i := slices.IndexFunc(s.Processes, func(p devcluster.Process) bool { return p.Name == name })
	if i < 0 {
		c.t.Fatalf("no process %q in %+v", name, s.Processes)
	}
	return s.Processes[i]
}

// pids are the processes of the cluster as the kernel knows them, the supervisor among them.
func (c *cluster) pids() []int {
	c.t.Helper()
	pids, err := clean.Marked("LONGSHORE_DEVCLUSTER=" + c.dir)
	if err != nil {
		c.t.Fatal(err)
	}
	return pids
}

func (c *cluster) mounts() []string {
	c.t.Helper()
	mounts, err := clean.FindMounts(c.dir)
	if err != nil {
		c.t.Fatal(err)
	}
	return mounts
}

// supervisor is the process that all others are children of.
func (c *cluster) supervisor() int {
	c.t.Helper()
	var leaders []int
	for _, pid := range c.pids() {
		if isSupervisor(pid) {
			leaders = append(leaders, pid)
		}
	}
	if len(leaders) != 1 {
		c.t.Fatalf("supervisors: %v", leaders)
	}
	return leaders[0]
}

// nothingLeft checks that there is no process, mount, loop device or file of the cluster.
func (c *cluster) nothingLeft() {
	c.t.Helper()
	c.nothingRuns()
	if _, err := os.Stat(c.dir); !errors.Is(err, os.ErrNotExist) {
		c.t.Errorf("the directory is still there: %v", err)
	}
}

func (c *cluster) nothingRuns() {
	c.t.Helper()
	if pids := c.pids(); len(pids) > 0 {
		c.t.Errorf("processes are left: %v", pids)
	}
	if mounts := c.mounts(); len(mounts) > 0 {
		c.t.Errorf("mounts are left: %q", mounts)
	}
	if loops, err := clean.FindLoops(c.dir); err != nil || len(loops) > 0 {
		c.t.Errorf("loop devices are left: %q, %v", loops, err)
	}
}

// rest is the administrator's client configuration.
func (c *cluster) rest() *rest.Config {
	c.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.dir, "kubeconfig"))
	if err != nil {
		c.t.Fatal(err)
	}
	return config
}

func (c *cluster) client() kubernetes.Interface {
	c.t.Helper()
	client, err := kubernetes.NewForConfig(c.rest())
	if err != nil {
		c.t.Fatal(err)
	}
	return client
}

// eventually asks until it gets no complaint.
func (c *cluster) eventually(what string, complaint func() string) {
	c.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		said := complaint()
		if said == "" {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			c.t.Fatalf("%s: %s", what, said)
		}
	}
}
