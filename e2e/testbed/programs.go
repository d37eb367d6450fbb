package testbed

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

// UpstreamProgram returns the path of a program of kubernetes-csi, which is built from its module (e2e/upstream) unless the cache has it.
func UpstreamProgram(t testing.TB, name string) string {
	t.Helper()
	return printed(t, exec.CommandContext(t.Context(), Path("e2e/upstream/build"), name))
}

// UpstreamSource returns the directory of a module of kubernetes-csi that e2e/upstream pins, with its manifests and examples.
func UpstreamSource(t testing.TB, module string) string {
	t.Helper()
	return printed(t, exec.CommandContext(t.Context(), Path("e2e/upstream/build"), "-source", module))
}

// KubernetesProgram returns the path of a program of Kubernetes' own tests, "mockdriver" for instance, which e2e/k8s builds unless the cache has it.
func KubernetesProgram(t testing.TB, name string) string {
	t.Helper()
	return printed(t, exec.CommandContext(t.Context(), Path("e2e/k8s/build"), name))
}

// printed returns the line that a command prints.
func printed(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, &stderr)
	}
	return strings.TrimSpace(string(out))
}

// Build writes the program of a package of this tree, with further flags of go build, to the path program. The module of the package is given by its
// directory below the root, the package by its directory in the module, "./cmd/hostpathplugin" for instance.
func Build(t testing.TB, program, module, pkg string, flags ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", slices.Concat([]string{"build", "-C", Path(module), "-trimpath", "-o", program}, flags, []string{pkg})...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

// Kill kills a program that runs, and waits for its end.
func Kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// Impersonate returns the path of a copy of an administrator's kubeconfig that acts as another user. It is removed with the test.
func Impersonate(t testing.TB, kubeconfig, user string) (path string) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range config.AuthInfos {
		info.Impersonate = user
	}
	path = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// FreeAddress returns an address of this host, "127.0.0.1:20000" for instance, that nothing listens at. The kernel gives ports below 32768 to nobody who asks for any.
func FreeAddress(t testing.TB) string {
	t.Helper()
	for {
		address := fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(10000)) //nolint:gosec // any will do
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		switch {
		case err == nil:
			_ = listener.Close()
			return address
		case !errors.Is(err, syscall.EADDRINUSE):
			t.Fatal(err)
		}
	}
}
