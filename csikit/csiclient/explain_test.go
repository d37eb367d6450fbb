package csiclient

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestExplain(t *testing.T) {
	user := process{uid: 65532, groups: []int{65532, 7}}
	cases := map[string]struct {
		reason  string
		file    file
		process process
		want    string
	}{
		"OtherUser": {
			reason: "the usual case: a driver that runs as root, and a sidecar that does not", process: user,
			file: file{path: "/csi/csi.sock", perm: 0o755},
			want: "socket /csi/csi.sock has mode 0755, owner uid 0, gid 0; this process has uid 65532, gid 65532, groups 65532 7 and needs write permission: " +
				"set runAsUser of this container to 0, or let the driver set the mode of the socket to 0660 and set runAsGroup or fsGroup to 0",
		},
		"GroupMay": {
			reason: "the group has access already", process: user, file: file{path: "/s", perm: 0o660, uid: 5, gid: 6},
			want: "set runAsGroup, supplementalGroups or fsGroup of the pod to 6, or runAsUser of this container to 5",
		},
		"InGroup": {
			reason: "the right group has no access", process: user, file: file{path: "/s", perm: 0o755, gid: 7},
			want: "let the driver set the mode of the socket to 0660",
		},
		"Owner": {
			reason: "root without CAP_DAC_OVERRIDE is a user like others", process: process{groups: []int{0}}, file: file{path: "/s", perm: 0o577},
			want: "let the driver set the mode of the socket to 0660",
		},
		"Directory": {
			reason: "a directory hides the socket", process: user, file: file{path: "/csi", dir: true, perm: 0o700},
			want: "directory /csi has mode 0700, owner uid 0, gid 0; this process has uid 65532, gid 65532, groups 65532 7 and needs search permission: set runAsUser",
		},
		"Granted": {
			reason: "the mode is not what denies", process: user, file: file{path: "/s", perm: 0o777},
			want: "look for a denial by SELinux or AppArmor",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.file.explain(tc.process); !strings.Contains(got, tc.want) {
				t.Errorf("%s: got\n%s\nwant\n%s", tc.reason, got, tc.want)
			}
		})
	}
}

func TestExplainDeniedFindsTheGuard(t *testing.T) {
	dir := t.TempDir()
	denied := &fs.PathError{Op: "connect", Path: "x", Err: syscall.EACCES}
	for _, missing := range []string{"csi.sock", "a/b/csi.sock"} {
		err := explainDenied(denied, filepath.Join(dir, missing))
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), fmt.Sprintf("directory %s has mode", dir)) {
			t.Errorf("%s: got %v", missing, err)
		}
	}
	if other := error(&fs.PathError{Op: "connect", Path: "x", Err: syscall.ENOENT}); explainDenied(other, dir) != other { //nolint:errorlint // the very same
		t.Error("another error was changed")
	}
	if owner := thisProcess(); owner.uid != os.Geteuid() || owner.groups[0] != os.Getegid() {
		t.Errorf("this process: %v", owner)
	}
}

// A reason that is new is logged at once, also when another one was logged just before; the rate is bounded.
func TestWaitLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := WaitLog{Every: 30 * time.Second}
		lines := map[string]int{}
		for second := range 120 {
			reason := "absent"
			switch {
			case second >= 60: // another text each time
				reason = fmt.Sprintf("request %d", second)
			case second >= 3:
				reason = "denied"
			}
			if log.Due(reason) {
				lines[reason[:6]]++
			}
			time.Sleep(time.Second)
		}
		if lines["absent"] != 1 || lines["denied"] != 2 || lines["reques"] != 12 {
			t.Errorf("lines: %v", lines)
		}
	})
}
