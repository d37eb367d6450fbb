package program

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// isSupervisor reports whether a process leads the session of the cluster. Its command line would not do: a process that is just
// being started shows that of its parent.
func isSupervisor(pid int) bool {
	session, err := unix.Getsid(pid)
	return err == nil && session == pid
}

// listeners are the TCP addresses, as /proc writes them, on which the processes listen.
func listeners(t *testing.T, pids []int) []string {
	t.Helper()
	sockets := map[string]bool{}
	for _, pid := range pids {
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range links {
			// A descriptor that was closed in the meantime is no listener.
			if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, "socket:[") {
				sockets[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] = true
			}
		}
	}
	var found []string
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		found = append(found, listening(t, table, sockets)...)
	}
	return found
}

// listening reads one of the kernel's socket tables: columns 2, 4 and 10 are the local address, the state and the inode.
func listening(t *testing.T, table string, inodes map[string]bool) []string {
	t.Helper()
	f, err := os.Open(table)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const listen = "0A"
	var found []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if c := strings.Fields(lines.Text()); len(c) > 9 && c[3] == listen && inodes[c[9]] {
			found = append(found, c[1])
		}
	}
	return found
}

// onLoopback reports whether an address of the kernel's table is 127.0.0.1 or ::1.
func onLoopback(address string) bool {
	return strings.HasPrefix(address, "0100007F:") || strings.HasPrefix(address, "00000000000000000000000001000000:")
}

func TestOnLoopback(t *testing.T) {
	for address, want := range map[string]bool{
		"0100007F:1F90": true, "00000000000000000000000001000000:1F90": true,
		"00000000:1F90": false, "00000000000000000000000000000000:1F90": false, "0101A8C0:1F90": false,
	} {
		if got := onLoopback(address); got != want {
			t.Errorf("%s: got %t", address, got)
		}
	}
}
