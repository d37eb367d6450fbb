package program

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/devcluster"
)

// stuckDriver is a driver whose node side never answers: a start with it does not come to its end before Ctrl-C does.
func stuckDriver(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "driver")
	script := "#!/bin/sh\ncase \"$*\" in *--mode=controller*) exec " + built.driver + " \"$@\" ;; esac\nexec sleep 1000\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCtrlCDuringTheStartLeavesNothing(t *testing.T) {
	for name, moment := range map[string]string{"Early": "starting etcd", "Late": "starting kube-controller-manager"} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			r := c.interrupt(moment, "up", "--nodes=1", "--driver="+stuckDriver(t), "--driver-flags=--endpoint={endpoint} --mode={mode} --nodeid={node} --statedir={statedir}")
			if r.code != 1 || !strings.Contains(r.stderr, "interrupted, everything is taken down again") {
				t.Errorf("ended with %d: %s%s", r.code, r.stdout, r.stderr)
			}
			if strings.Contains(r.stdout, "The cluster is up") {
				t.Errorf("it came up: %s", r.stdout)
			}
			c.nothingLeft()
		})
	}
}

// TestDownAfterAKill also checks mounts that no component knows of, and what lies behind them.
func TestDownAfterAKill(t *testing.T) {
	c := newCluster(t)
	c.mustRun("up", "--nodes=1")
	precious := t.TempDir()
	if err := os.WriteFile(filepath.Join(precious, "file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.bind(precious, filepath.Join(c.dir, "nodes", "node-1", "mnt"))
	c.bind(precious, filepath.Join(c.dir, "data", "mnt"))
	c.killSupervisor()
	if r := c.mustRun("down"); !strings.Contains(r.stdout, "2 mounts removed") {
		t.Errorf("got %q", r.stdout)
	}
	c.nothingLeft()
	if data, err := os.ReadFile(filepath.Join(precious, "file")); err != nil || string(data) != "text" {
		t.Errorf("the file behind the mount: %q, %v", data, err)
	}
}

func (c *cluster) bind(source, target string) {
	c.t.Helper()
	if err := os.MkdirAll(target, 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		c.t.Fatal(err)
	}
}

// keepsLogsOnly checks what a failed start leaves: logs to read, and nothing else.
func (c *cluster) keepsLogsOnly(log string) {
	c.t.Helper()
	c.nothingRuns()
	if _, err := os.Stat(filepath.Join(c.dir, "logs", log+".log")); err != nil {
		c.t.Errorf("the log is gone: %v", err)
	}
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "logs" && !strings.HasPrefix(e.Name(), ".") {
			c.t.Errorf("%s is left", e.Name())
		}
	}
	c.mustFail([]string{"status"}, "no cluster is up")
}

// TestDriverThatEndsAtOnce wants the last lines of the driver's log in the error.
func TestDriverThatEndsAtOnce(t *testing.T) {
	c := newCluster(t)
	driver := filepath.Join(t.TempDir(), "driver")
	if err := os.WriteFile(driver, []byte("#!/bin/sh\necho \"no license for $NODE_ID\" >&2\nexit 7\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	c.mustFail([]string{"up", "--nodes=1", "--driver=" + driver},
		"start driver.node-1: it ends again and again", "exit status 7", filepath.Join(c.dir, "logs", "driver.node-1.log"), "no license for node-1", "the logs are in "+filepath.Join(c.dir, "logs"))
	c.keepsLogsOnly("driver.node-1")
	c.mustRun("logs", "driver.node-1")
	if r := c.mustRun("down"); !strings.Contains(r.stdout, "down: 0 processes") {
		t.Errorf("got %q", r.stdout)
	}
	c.nothingLeft()
}

// fakeGo "builds" control planes whose programs say what they are and end: a broken pin, without the minutes of a build.
const fakeGo = `#!/bin/sh
case "$1" in
env) echo go1.0.fake ;;
build)
	for last; do :; done
	while [ "$1" != -o ]; do shift; done
	printf '#!/bin/sh\necho this is a broken %s\nexit 3\n' "$last" > "$2" && chmod +x "$2"
	;;
esac
`

func TestBrokenControlPlaneAndTheProgressOfItsBuild(t *testing.T) {
	c := newCluster(t)
	path := t.TempDir()
	if err := os.WriteFile(filepath.Join(path, "go"), []byte(fakeGo), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", path+":"+os.Getenv("PATH"))
	r := c.mustFail([]string{"up", "--nodes=1", "--cache=" + t.TempDir(), "--kubernetes-url=", "--etcd-url="}, "start etcd: it ends again and again", "exit status 3", filepath.Join(c.dir, "logs", "etcd.log"))
	for i, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"} {
		// Which one it is at, and how long it may take.
		want := fmt.Sprintf("building %s (%d of 5, up to ", name, i+1)
		if !strings.Contains(r.stdout, want) {
			t.Errorf("up does not tell %q:\n%s", want, r.stdout)
		}
	}
	if out := c.mustRun("logs", "etcd").stdout; !strings.Contains(out, "this is a broken go.etcd.io/etcd") {
		t.Errorf("the log that was kept says %q", out)
	}
	c.keepsLogsOnly("etcd")
}

func TestDirectoryWithoutPins(t *testing.T) {
	c := newCluster(t)
	c.mustFail([]string{"up", "--controlplane=" + t.TempDir()}, "read the pins of the control plane", "go.mod", "--controlplane")
	c.keepsLogsOnly("supervisor")
}

// TestUpAfterAFailureThatNobodySaw starts over where the supervisor of a failed start still stands: its caller was killed.
func TestUpAfterAFailureThatNobodySaw(t *testing.T) {
	c := newCluster(t)
	failed := c.command(t.Context(), "supervise", "--nodes=1", "--controlplane="+t.TempDir(), "--cache="+t.TempDir())
	failed.Env = append(os.Environ(), "LONGSHORE_DEVCLUSTER="+c.dir)
	if err := failed.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- failed.Wait() }()
	c.eventually("the start fails", func() string {
		s, err := devcluster.Connect(c.dir).Status(t.Context(), 0)
		if err != nil || s.Phase != devcluster.Failed {
			return fmt.Sprintf("%s, %v", s.Phase, err)
		}
		return ""
	})
	if out := c.mustRun("status").stdout; !strings.Contains(out, "Failed") || !strings.Contains(out, "error: read the pins") {
		t.Errorf("status says %s", out)
	}
	c.interrupt("starting etcd", "up", "--nodes=1", "--driver="+stuckDriver(t), "--driver-flags=--endpoint={endpoint} --mode={mode} --nodeid={node} --statedir={statedir}")
	if err := <-ended; err == nil {
		t.Error("the earlier supervisor was not ended by force")
	}
	c.nothingLeft()
}

func TestRefusedBeforeAnythingStarts(t *testing.T) {
	foreign, err := os.MkdirTemp("", "dc-") // t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(foreign) })
	precious := filepath.Join(foreign, "thesis")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		reason string
		args   []string
		dir    string
		want   string
	}{
		"TooLong":     {reason: "a socket below it would have no valid path", args: []string{"up"}, dir: "/var/tmp/" + strings.Repeat("d", 90), want: "choose a shorter directory"},
		"UpForeign":   {reason: "a directory with other files is nobody's to remove", args: []string{"up"}, dir: foreign, want: "not the directory of a development cluster"},
		"DownForeign": {reason: "nor is it for down", args: []string{"down"}, dir: foreign, want: "not the directory of a development cluster"},
		"NoDriver":    {reason: "a misspelt path is named", args: []string{"up", "--driver=/nonexistent"}, dir: "/var/tmp/dc-none", want: "--driver=/nonexistent: stat"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := &cluster{t: t, dir: tc.dir}
			c.mustFail(tc.args, tc.want)
			c.nothingRuns()
			if _, err := os.Stat(precious); err != nil {
				t.Errorf("%s: %v", tc.reason, err)
			}
			if _, err := os.Stat(tc.dir); tc.dir != foreign && err == nil {
				t.Errorf("%s: %s was made", tc.reason, tc.dir)
			}
		})
	}
}

func TestOrdinaryUserIsToldWhatToDo(t *testing.T) {
	const nobody = 65534
	c := newCluster(t)
	cmd := c.command(t.Context(), "up")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "HOME=/nonexistent")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	r := c.finish(cmd)
	if r.code != 1 || !strings.Contains(r.stderr, "needs root") || !strings.Contains(r.stderr, "sudo") {
		t.Errorf("ended with %d: %s%s", r.code, r.stdout, r.stderr)
	}
	c.nothingLeft()
}

func TestMachineWithoutGo(t *testing.T) {
	c := newCluster(t)
	t.Setenv("PATH", t.TempDir())
	c.mustFail([]string{"up"}, "install Go")
	c.nothingLeft()
}

// TestManyAtOnce runs up from several terminals: one starts the cluster, the others wait for it.
func TestManyAtOnce(t *testing.T) {
	c := newCluster(t)
	const callers = 3
	results := make([]result, callers)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() { results[i] = c.run("up", "--nodes=1") })
	}
	wg.Wait()
	starts := 0
	for _, r := range results {
		if r.code != 0 || !strings.Contains(r.stdout, "The cluster is up") {
			t.Errorf("ended with %d: %s%s", r.code, r.stdout, r.stderr)
		}
		if !strings.Contains(r.stdout, "already ") {
			starts++
		}
	}
	if starts != 1 {
		t.Errorf("%d of %d started a cluster", starts, callers)
	}
	if r := c.mustRun("down"); !strings.HasPrefix(r.stdout, "down: ") {
		t.Errorf("got %q", r.stdout)
	}
}

// TestBuiltDriverExplainsItself guards the other tests: what --driver names must be a driver.
func TestBuiltDriverExplainsItself(t *testing.T) {
	out, err := exec.CommandContext(context.Background(), built.driver, "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "hostpathplugin") {
		t.Errorf("%q, %v", out, err)
	}
}
