package k8s

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init" // what failed is told with the events of its namespace
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	_ "k8s.io/kubernetes/test/e2e/storage"         // specs of the csi-hostpath driver
	_ "k8s.io/kubernetes/test/e2e/storage/csimock" // specs of the mock driver
	"k8s.io/kubernetes/test/e2e/storage/external"
	testingmanifests "k8s.io/kubernetes/test/e2e/testing-manifests"

	"github.com/longshore-csi/longshore/e2e/k8s/definition"
)

func TestMain(m *testing.M) {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Func("driver", "file that defines the driver, as -storage.testdriver, but with no key that the suite would ignore", addDriver)
	flag.Parse()
	testfiles.AddFileSource(testingmanifests.GetE2ETestingManifestsFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	os.Exit(m.Run())
}

// addDriver makes the specs of the driver that the file defines, which names further files in its directory.
func addDriver(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := definition.Check(data); err != nil {
		return err
	}
	testfiles.AddFileSource(testfiles.RootFileSource{Root: filepath.Dir(file)})
	return external.AddDriverDefinition(file)
}

func TestStorage(t *testing.T) {
	gomega.RegisterFailHandler(framework.Fail)
	suite, reporter := framework.CreateGinkgoConfig()
	ginkgo.RunSpecs(t, "Kubernetes storage suite", suite, reporter)
}
