package plane

import (
	"errors"
	"net"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// bindWithoutReuse binds as one who shares with nobody.
func bindWithoutReuse(t *testing.T, port int) error {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	return unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: port})
}

// TestReservedPortIsForTheOneWhoNamesIt: a process that is started late, or again after a crash, still gets its port.
func TestReservedPortIsForTheOneWhoNamesIt(t *testing.T) {
	ports, err := reservePorts("etcd")
	if err != nil {
		t.Fatal(err)
	}
	port := ports["etcd"].number
	for range 2 {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			t.Fatalf("the one who names it cannot listen: %v", err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := bindWithoutReuse(t, port); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("while nobody listens the port is free for others: %v", err)
		}
	}
	if err := closePorts(ports); err != nil {
		t.Error(err)
	}
	if err := closePorts(ports); err == nil {
		t.Error("the port is given back twice")
	}
}
