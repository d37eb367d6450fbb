package quota

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// enforcedEnv makes the test program print whether quotas are enforced at that
// path, and end, so that tests can have it in another user namespace.
const enforcedEnv = "QUOTA_TEST_ENFORCED"

func TestMain(m *testing.M) {
	if path := os.Getenv(enforcedEnv); path != "" {
		enforced, err := New().Enforced(path)
		fmt.Println(enforced, err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func userNamespace(t *testing.T, _ kind, root string) {
	self := exec.Command("/proc/self/exe")
	self.Env = append(os.Environ(), enforcedEnv+"="+root)
	all := []syscall.SysProcIDMap{{Size: 1 << 16}}
	for want, attr := range map[string]*syscall.SysProcAttr{
		"true <nil>":  {},
		"false <nil>": {Cloneflags: syscall.CLONE_NEWUSER, UidMappings: all, GidMappings: all},
	} {
		again := *self
		again.SysProcAttr = attr
		out, err := again.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("flags %#x: %q, %v, want %q", attr.Cloneflags, got, err, want)
		}
	}
}
