package quota

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// These make the test program do something and end, so that tests can have it
// done by another user, or in another user namespace.
const (
	// enforcedEnv is a path: are quotas enforced there?
	enforcedEnv = "QUOTA_TEST_ENFORCED"
	// leaveEnv takes file 3 out of its project.
	leaveEnv = "QUOTA_TEST_LEAVE"
)

func TestMain(m *testing.M) {
	switch path := os.Getenv(enforcedEnv); {
	case path != "":
		fmt.Println(New().Enforced(path))
	case os.Getenv(leaveEnv) != "":
		fmt.Println((&directory{os.NewFile(3, "file")}).setAttributes(attributes{}))
	default:
		os.Exit(m.Run())
	}
}

// again runs the test program, and returns what it prints.
func again(t *testing.T, env string, attr *syscall.SysProcAttr, files ...*os.File) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.SysProcAttr, cmd.ExtraFiles = append(os.Environ(), env), attr, files
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", env, err, out)
	}
	return strings.TrimSpace(string(out))
}

// inNamespace is how a process gets a user namespace of its own.
func inNamespace() *syscall.SysProcAttr {
	all := []syscall.SysProcIDMap{{Size: 1 << 16}}
	return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: all, GidMappings: all}
}

func userNamespace(t *testing.T, _ kind, root string) {
	if got := again(t, enforcedEnv+"="+root, nil); got != "true <nil>" {
		t.Errorf("in the first user namespace: %s", got)
	}
	if got := again(t, enforcedEnv+"="+root, inNamespace()); got != "false <nil>" {
		t.Errorf("in another user namespace: %s", got)
	}
}

func ownerLeaves(t *testing.T, _ kind, root string) {
	const nobody = 65534
	dir := makeLimited(t, New(), root, "volume", 2*mib)
	name := filepath.Join(dir, "file")
	mustWrite(t, name, mib)
	if err := os.Chown(name, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	user := &syscall.Credential{Uid: nobody, Gid: nobody}
	contained := inNamespace()
	contained.Credential = user
	if got := again(t, leaveEnv+"=yes", contained, file); !strings.HasSuffix(got, unix.EINVAL.Error()) {
		t.Errorf("the owner in a user namespace: %s", got)
	}
	if u := mustUsage(t, New(), dir); u.Bytes < mib || u.Inodes != 2 {
		t.Errorf("the owner could not leave: %+v", u)
	}
	if got := again(t, leaveEnv+"=yes", &syscall.SysProcAttr{Credential: user}, file); got != "<nil>" {
		t.Errorf("the owner: %s", got)
	}
	if u := mustUsage(t, New(), dir); u.Bytes >= mib || u.Inodes != 1 {
		t.Errorf("the owner has left: %+v", u)
	}
}
