package nodeagent

import (
	"errors"
	"fmt"
	"net"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/nodeagent/internal/nodeobj"
)

// template describes the node by the options and the machine.
func (o *Options) template() (nodeobj.Template, error) {
	ip, err := o.address()
	if err != nil {
		return nodeobj.Template{}, err
	}
	memory, storage := machine(o.RootDir)
	return nodeobj.Template{
		Name: o.NodeName, IP: ip, Unmanaged: o.SelfAttach != "", MaxPods: int64(o.MaxPods),
		CPU: int64(runtime.NumCPU()), Memory: memory, Storage: storage,
	}, nil
}

var errNoAddress = errors.New("this machine has no address")

// address is the internal address of the node.
func (o *Options) address() (string, error) {
	if o.NodeIP != "" {
		return o.NodeIP, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("find the address of the node (--node-ip sets it): %w", err)
	}
	loopback := ""
	for _, a := range addrs {
		ipNet, ok := a.(*net.IPNet)
		switch {
		case !ok || ipNet.IP.IsLinkLocalUnicast():
		case !ipNet.IP.IsLoopback():
			return ipNet.IP.String(), nil
		case loopback == "":
			loopback = ipNet.IP.String()
		}
	}
	if loopback == "" {
		return "", fmt.Errorf("find the address of the node (--node-ip sets it): %w", errNoAddress)
	}
	return loopback, nil
}

// machine returns the bytes of memory and of the file system of a directory; zero if they are unknown.
func machine(dir string) (memory, storage int64) {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		memory = int64(info.Totalram) * int64(info.Unit) //nolint:gosec // fits for all machines there are
	}
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) == nil {
		storage = int64(fs.Blocks) * fs.Bsize //nolint:gosec // fits for all file systems there are
	}
	return memory, storage
}
