// Package components runs the project's components by name, so that one program can be all processes of a cluster.
//
// They take the flags of the binaries that they replace here. A deployment uses those binaries. csi-nodes alone has no binary: it is csi-node-agent with
// the reference driver in its process.
package components

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/longshore-csi/longshore/attacher"
	"github.com/longshore-csi/longshore/csikit/command"
	"github.com/longshore-csi/longshore/hostpathdriver"
	"github.com/longshore-csi/longshore/livenessprobe"
	"github.com/longshore-csi/longshore/nodeagent"
	"github.com/longshore-csi/longshore/provisioner"
	"github.com/longshore-csi/longshore/registrar"
	"github.com/longshore-csi/longshore/resizer"
	"github.com/longshore-csi/longshore/snapshotcontroller"
	"github.com/longshore-csi/longshore/snapshotmetadata"
	"github.com/longshore-csi/longshore/snapshotter"
)

type component interface {
	Execute(ctx context.Context, args []string, stdout, stderr io.Writer) error
}

func all() map[string]component {
	return map[string]component{
		"csi-attacher":              command.New("csi-attacher", attacher.NewOptions, attacher.Run),
		"csi-node-agent":            command.New("csi-node-agent", nodeagent.NewOptions, nodeagent.Run),
		"csi-node-driver-registrar": command.New("csi-node-driver-registrar", registrar.NewOptions, registrar.Run),
		"csi-nodes":                 command.New("csi-nodes", newNodesOptions, runNodes),
		"csi-provisioner":           command.New("csi-provisioner", provisioner.NewOptions, provisioner.Run),
		"csi-resizer":               command.New("csi-resizer", resizer.NewOptions, resizer.Run),
		"csi-snapshot-metadata":     command.New("csi-snapshot-metadata", snapshotmetadata.NewOptions, snapshotmetadata.Run),
		"csi-snapshotter":           command.New("csi-snapshotter", snapshotter.NewOptions, snapshotter.Run),
		"hostpathplugin":            command.New("hostpathplugin", hostpathdriver.NewOptions, hostpathdriver.Run),
		"livenessprobe":             command.New("livenessprobe", livenessprobe.NewOptions, livenessprobe.Run),
		"snapshot-controller":       command.New("snapshot-controller", snapshotcontroller.NewOptions, snapshotcontroller.Run),
	}
}

// Names lists the components.
func Names() []string { return slices.Sorted(maps.Keys(all())) }

// ProgramsEnv is the environment variable with a directory of programs that run in place of the components of their names.
const ProgramsEnv = "LONGSHORE_PROGRAMS"

// Run runs a component until it ends or ctx does. An end that ctx asked for is no error. If ProgramsEnv is set, the process becomes the program of the component.
func Run(ctx context.Context, name string, args []string, stdout, stderr io.Writer) error {
	c, ok := all()[name]
	if !ok {
		return fmt.Errorf("no component %q: there are %q", name, Names())
	}
	if dir := os.Getenv(ProgramsEnv); dir != "" {
		path := filepath.Join(dir, name)
		return fmt.Errorf("run %s: %w", path, syscall.Exec(path, append([]string{path}, args...), os.Environ()))
	}
	if err := c.Execute(ctx, args, stdout, stderr); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
