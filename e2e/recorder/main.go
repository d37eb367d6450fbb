// Command recorder is a CSI driver with which kubelets are compared: it writes down what its node service is called with, answers with
// errors on request, and mounts real directories and devices, as kubelets look at both.
//
// Its only argument is a Config in JSON. It writes a Call in JSON to a line of its standard output for each call, and reads a Fault from
// each line of its standard input, which it answers with an empty Call. At the end of the input it ends without a word to anybody, as if it was killed.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/longshore-csi/longshore/e2e/recorder/record"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run() error {
	var c record.Config
	if err := json.Unmarshal([]byte(os.Args[1]), &c); err != nil {
		return fmt.Errorf("read the configuration %q: %w", os.Args[1], err)
	}
	d := &driver{Config: c, out: json.NewEncoder(os.Stdout)}
	ended := make(chan error, 2)
	d.serve(c.Socket(), ended, func(s grpc.ServiceRegistrar) {
		csi.RegisterIdentityServer(s, d)
		csi.RegisterNodeServer(s, d)
	})
	// The kubelet calls as soon as it finds this socket.
	d.serve(c.RegistrationSocket(), ended, func(s grpc.ServiceRegistrar) { registerapi.RegisterRegistrationServer(s, d) })
	go func() { ended <- d.readFaults(os.Stdin) }()
	return <-ended
}

// driver is the CSI driver and its own registrar.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	registerapi.UnimplementedRegistrationServer
	record.Config

	mu     sync.Mutex
	faults []record.Fault
	out    *json.Encoder
}

// serve serves at a socket, also where a killed process has left one.
func (d *driver) serve(socket string, ended chan<- error, register func(grpc.ServiceRegistrar)) {
	if err := errors.Join(os.MkdirAll(filepath.Dir(socket), 0o750), ignoreMissing(os.Remove(socket))); err != nil {
		ended <- err
		return
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", socket)
	if err != nil {
		ended <- err
		return
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(d.record))
	register(s)
	go func() { ended <- s.Serve(l) }()
}

func (d *driver) readFaults(r io.Reader) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var f record.Fault
		if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
			return fmt.Errorf("read the fault %q: %w", lines.Text(), err)
		}
		if err := d.add(f); err != nil {
			return err
		}
	}
	return lines.Err()
}

// add takes a fault, and says so after all calls that were made before.
func (d *driver) add(f record.Fault) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = append(d.faults, f)
	return d.out.Encode(record.Call{})
}

// recorded reports whether a call is written down: of some, a kubelet may make any number.
func recorded(method string) bool {
	service, name := path.Split(method)
	switch name {
	case "NodeGetCapabilities", "NodeGetInfo":
		return false
	case "NotifyRegistrationStatus":
		return true
	default:
		return service == "/csi.v1.Node/"
	}
}

// record writes a call down, one at a time.
func (d *driver) record(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	if !recorded(info.FullMethod) {
		return handle(ctx, req)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	request, err := (protojson.MarshalOptions{UseProtoNames: true}).Marshal(req.(proto.Message))
	if err != nil {
		return nil, err
	}
	call := record.Call{Method: method, Request: request, Paths: found(request)}
	reply, err := d.answer(ctx, method, req, handle)
	call.Code = status.Code(err).String()
	return reply, errors.Join(err, d.out.Encode(call))
}

// answer makes the call, unless the method has a fault.
func (d *driver) answer(ctx context.Context, method string, req any, handle grpc.UnaryHandler) (any, error) {
	for i := range d.faults {
		f := &d.faults[i]
		if f.Method != method || f.Times == 0 {
			continue
		}
		f.Times--
		if f.Late {
			if _, err := handle(ctx, req); err != nil {
				return nil, err
			}
		}
		return nil, status.Error(f.Code, "asked for by the test")
	}
	reply, err := handle(ctx, req)
	if _, ok := status.FromError(err); !ok {
		err = status.Error(codes.Internal, err.Error())
	}
	return reply, err
}

// found returns the kind of file at each path of a request.
func found(request []byte) map[string]string {
	var paths struct {
		Staging string `json:"staging_target_path"`
		Target  string `json:"target_path"`
		Volume  string `json:"volume_path"`
	}
	if err := json.Unmarshal(request, &paths); err != nil {
		return nil
	}
	all := map[string]string{}
	for name, p := range map[string]string{"staging_target_path": paths.Staging, "target_path": paths.Target, "volume_path": paths.Volume} {
		if p != "" {
			all[name] = kind(p)
		}
	}
	// The kubelet makes the directory of the target, as CSI demands.
	if _, err := os.Lstat(filepath.Dir(paths.Target)); err != nil && paths.Target != "" {
		all["target_path"] = "nothing, nor a parent"
	}
	return all
}

// kind returns the kind of the file at a path.
func kind(p string) string {
	info, err := os.Lstat(p)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "nothing"
	case err != nil:
		return err.Error()
	case mounted(p) && info.IsDir():
		return "mounted directory"
	case mounted(p):
		return "mounted device"
	case info.IsDir():
		return "directory"
	default:
		return "file"
	}
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
