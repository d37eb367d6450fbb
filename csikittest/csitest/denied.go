package csitest

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

const (
	// deniedEnv carries the address into the child process of ServeDenied.
	deniedEnv = "CSITEST_DENIED_ADDRESS"
	// deniedUser is the user and group ID of that process.
	deniedUser = 65532
)

// ServeDenied serves the driver on a socket that the rest of the calling test
// may not connect to. Root ignores modes, so ServeDenied then runs the test
// again as another user in a child process, on a socket of mode 0755, and
// returns ok only there: the caller returns at once unless ok.
func (d *Driver) ServeDenied(t *testing.T) (address string, ok bool) {
	t.Helper()
	if address := os.Getenv(deniedEnv); address != "" {
		return address, true
	}
	address = d.Serve(t)
	socket := strings.TrimPrefix(address, "unix://")
	if os.Geteuid() != 0 {
		if err := os.Chmod(socket, 0o500); err != nil { //nolint:gosec // not even the owner may write
			t.Fatalf("make %s unwritable: %v", socket, err)
		}
		return address, true
	}
	openToAll(t, socket)
	child := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v") //nolint:gosec // this very test
	child.Dir, child.Env = "/", append(os.Environ(), deniedEnv+"="+address)
	child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: deniedUser, Gid: deniedUser}}
	out, err := child.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as user %d: %v\n%s", deniedUser, err, out)
	}
	return "", false
}

// openToAll sets the mode that net.Listen sets in most containers, 0755, on a
// socket and on its directory.
func openToAll(t *testing.T, socket string) {
	t.Helper()
	for _, path := range []string{socket, socket[:strings.LastIndexByte(socket, '/')]} {
		if err := os.Chmod(path, 0o755); err != nil { //nolint:gosec // on purpose
			t.Fatalf("make %s readable: %v", path, err)
		}
	}
}
