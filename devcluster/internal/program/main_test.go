package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	controlplane "github.com/longshore-csi/longshore/devcluster/internal/build"
	"github.com/longshore-csi/longshore/devcluster/internal/layout"
)

// programs are built once for all tests.
type programs struct{ devcluster, driver string }

var built programs

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	if os.Geteuid() != 0 {
		fmt.Println("skipped all of internal/program: needs root, because a cluster mounts volumes")
		return 0
	}
	work, err := os.MkdirTemp("", "dc-bin-")
	if err == nil {
		built, err = build(context.Background(), work)
	}
	if err == nil {
		// A test that starts a cluster must not have to wait for the first build of the control plane, which takes minutes.
		err = buildControlPlane(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := os.RemoveAll(work); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}()
	return m.Run()
}

func buildControlPlane(ctx context.Context) error {
	cache, err := layout.Cache()
	if err != nil {
		return err
	}
	_, err = controlplane.ControlPlane(ctx, controlplane.Config{Module: "../../controlplane", Cache: cache, Servers: controlplane.DefaultServers(), Progress: os.Stderr})
	return err
}

// build makes the program and, from its own module, the driver that a test names by --driver.
func build(ctx context.Context, work string) (programs, error) {
	p := programs{devcluster: filepath.Join(work, "devcluster"), driver: filepath.Join(work, "hostpathplugin")}
	return p, errors.Join(
		os.Chmod(work, 0o755), // a test runs the program as another user
		goBuild(ctx, "../..", p.devcluster, "./cmd/devcluster"),
		goBuild(ctx, "../../../hostpathdriver", p.driver, "./cmd/hostpathplugin"),
	)
}

func goBuild(ctx context.Context, dir, program, pkg string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", program, pkg)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0") // as make does
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s in %s: %w\n%s", pkg, dir, err, out)
	}
	return nil
}
