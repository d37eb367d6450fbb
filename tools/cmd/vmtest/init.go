package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// beInit is the first and only process of the machine but the tests. It does not return: the machine ends with it.
func beInit() {
	port, err := setUp()
	if err == nil {
		err = runAll(port)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
		if port != nil {
			fmt.Fprintf(port, "%s%s %v\n", marker, markFailed, err)
		}
	}
	if port != nil {
		_ = unix.IoctlSetInt(int(port.Fd()), unix.TCSBRK, 1) // tcdrain: until all is sent
	}
	err = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) // which qemu takes for an end
	fmt.Fprintln(os.Stderr, "init:", err)
}

// setUp mounts what programs expect, and opens the port for results.
func setUp() (*os.File, error) {
	for _, m := range []struct{ kind, dir, options string }{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"devtmpfs", "/dev", ""},
		{"tmpfs", "/dev/shm", ""},
		{"tmpfs", "/tmp", "size=90%"},
		{"tmpfs", "/run", ""},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return nil, err
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, m.options); err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	if err := startLoopback(); err != nil {
		return nil, fmt.Errorf("start the loopback interface: %w", err)
	}
	port, err := os.OpenFile("/dev/ttyS1", os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	// No carriage returns, and no other favours.
	err = unix.IoctlSetTermios(int(port.Fd()), unix.TCSETS, &unix.Termios{Cflag: unix.B115200 | unix.CS8 | unix.CREAD | unix.CLOCAL})
	return port, err
}

// startLoopback lets tests listen on 127.0.0.1 and ::1.
func startLoopback() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	request, err := unix.NewIfreq("lo")
	if err == nil {
		request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
		err = unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request)
	}
	return errors.Join(err, unix.Close(socket))
}

func runAll(port *os.File) error {
	data, err := os.ReadFile(taskFile)
	if err != nil {
		return err
	}
	var todo task
	if err := json.Unmarshal(data, &todo); err != nil {
		return err
	}
	for _, file := range todo.Modules {
		if err := load(file); err != nil {
			return fmt.Errorf("load %s: %w", file, err)
		}
	}
	for _, s := range todo.Suites {
		fmt.Fprintf(port, "%s%s %s\n", marker, markBegin, s.Package)
		code, err := runPackage(port, s, todo)
		if err != nil {
			return err
		}
		fmt.Fprintf(port, "\n%s%s %d\n", marker, markEnd, code)
	}
	_, err = fmt.Fprintln(port, marker+markDone)
	return err
}

func load(file string) error {
	module, err := os.Open(file)
	if err != nil {
		return err
	}
	defer module.Close()
	return unix.FinitModule(int(module.Fd()), "", 0)
}

func runPackage(port io.Writer, s suite, todo task) (code int, err error) {
	//nolint:noctx // the machine ends at its time
	cmd := exec.Command(s.Dir+"/package.test", "-test.v=test2json", "-test.paniconexit0", "-test.run="+todo.Run, fmt.Sprintf("-test.short=%t", todo.Short))
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Dir, port, port
	cmd.Env = []string{"PATH=/bin", "HOME=/root", "TMPDIR=/tmp", "VMTEST=1"}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}
