package provisioner

import (
	"os/exec"
	"strings"
	"testing"
)

// forbidden are packages that would make the binary large: each links all API groups of Kubernetes, or a
// second framework for what csikit does.
func forbidden() []string {
	return []string{
		"k8s.io/client-go/kubernetes",
		"k8s.io/client-go/informers",
		"k8s.io/client-go/listers",
		"k8s.io/client-go/tools/leaderelection",
		"k8s.io/client-go/tools/record",
		"k8s.io/apiserver",
		"k8s.io/component-base",
		"k8s.io/kubernetes",
		"sigs.k8s.io/controller-runtime",
		"github.com/spf13/cobra",
		"github.com/longshore-csi/longshore/csikit/csitest",
		"github.com/longshore-csi/longshore/csikit/kubetest",
	}
}

// TestDependencies keeps the binary small: it asks the go command what it is made of.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "./cmd/csi-provisioner").Output()
	if err != nil {
		t.Fatalf("list the packages of csi-provisioner: %v", err)
	}
	packages := strings.Fields(string(out))
	if len(packages) < 100 {
		t.Fatalf("only %d packages were listed, this test is not looking at the binary", len(packages))
	}
	for _, name := range packages {
		for _, bad := range forbidden() {
			if name == bad || strings.HasPrefix(name, bad+"/") {
				t.Errorf("the binary links %s, which it must not", name)
			}
		}
	}
}
