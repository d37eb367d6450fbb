package array

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fakeLosetup is losetup(8) without a kernel: a file of device /dev/loop7, whose --detach runs a script first.
const fakeLosetup = `#!/bin/sh
cd "$(dirname "$0")"
case $1 in
--find) echo 0 >device && echo /dev/loop7 ;;
--detach) %s ;;
*) [ ! -e device ] || echo "/dev/loop7 0 $(cat device)" ;;
esac
`

// exported is an array with a LUN that is exported to host n.
func exported(t *testing.T, detach string) (*Array, Request) {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "losetup"), fmt.Appendf(nil, fakeLosetup, detach), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	place := Place{Pool: "p"}
	a, err := Open(t.Context(), Config{Dir: t.TempDir(), Pools: []Pool{{Place: place, Size: 1 << 20}}, Hosts: []string{"n"}, HostLimit: 1, Loop: true})
	if err != nil {
		t.Fatal(err)
	}
	l, err := a.create(LUN{Ref: Ref{Kind: Volumes}, Place: place, Size: 1 << 10})
	if err != nil {
		t.Fatal(err)
	}
	r := Request{LUN: LUN{Ref: l.Ref}, Host: "n"}
	if _, err := a.export(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	return a, r
}

// TestUnexportWaitsForTheDisk: what bounds the wait for users does not end a losetup that waits for a slow disk.
func TestUnexportWaitsForTheDisk(t *testing.T) {
	a, r := exported(t, fmt.Sprintf("sleep %.0f && rm device", (lastUserTimeout+time.Second).Seconds()))
	if err := a.unexport(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if l, err := a.find(r.Ref); err != nil || len(l.Hosts) > 0 {
		t.Errorf("got %+v, %v; want no host", l, err)
	}
}

// TestUnexportNamesADeviceInUse: the host stays until the device has no user.
func TestUnexportNamesADeviceInUse(t *testing.T) {
	a, r := exported(t, "echo 1 >device")
	err := a.unexport(t.Context(), r)
	if answer, ok := errors.AsType[*Error](err); !ok || answer.Status != http.StatusLocked || !strings.Contains(answer.Text, "device /dev/loop7 is still in use") {
		t.Errorf("got %v", err)
	}
	if l, err := a.find(r.Ref); err != nil || len(l.Hosts) != 1 {
		t.Errorf("got %+v, %v; want the host", l, err)
	}
}

// TestUnexportFails: a losetup that fails says nothing about users.
func TestUnexportFails(t *testing.T) {
	a, r := exported(t, "echo broken; exit 1")
	err := a.unexport(t.Context(), r)
	if _, ok := errors.AsType[*Error](err); ok || err == nil || !strings.Contains(err.Error(), "losetup --detach /dev/loop7: exit status 1: broken") {
		t.Errorf("got %v", err)
	}
}
