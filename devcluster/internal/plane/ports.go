package plane

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// reservedPort is a port on loopback that is bound and not listened on. As long as it is open the kernel does not
// choose the port for a listener on port 0, and lets a process that names the port listen there, again after a restart, too. For
// that both set SO_REUSEADDR, as every listener of a Go program does.
type reservedPort struct {
	number int
	socket *os.File
}

func reservePort() (reservedPort, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return reservedPort{}, fmt.Errorf("make a socket: %w", err)
	}
	r := reservedPort{socket: os.NewFile(uintptr(fd), "reserved port")}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	var address unix.Sockaddr
	if err == nil {
		address, err = unix.Getsockname(fd)
	}
	if err != nil {
		return reservedPort{}, errors.Join(fmt.Errorf("find a free port: %w", err), r.socket.Close())
	}
	r.number = address.(*unix.SockaddrInet4).Port
	return r, nil
}

// reservePorts reserves a port for each name.
func reservePorts(names ...string) (map[string]reservedPort, error) {
	ports := map[string]reservedPort{}
	for _, name := range names {
		r, err := reservePort()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("reserve a port for %s: %w", name, err), closePorts(ports))
		}
		ports[name] = r
	}
	return ports, nil
}

func closePorts(ports map[string]reservedPort) error {
	var errs []error
	for name, r := range ports {
		if err := r.socket.Close(); err != nil {
			errs = append(errs, fmt.Errorf("release the port of %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
