package drivertest

import (
	"context"
	"os"
	"sync/atomic"
	"testing"

	csisanity "github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// sanityRuns counts runs of csi-sanity in this process: its framework allows one.
var sanityRuns atomic.Int32

// sanity runs csi-sanity against the driver.
func (s *settings) sanity(t *testing.T) {
	if sanityRuns.Add(1) > 1 {
		t.Fatal("csi-sanity can run only once in a process: all calls of drivertest.Run but one must have drivertest.NoSanity()")
	}
	m := s.newMachine(t)
	_, stop := m.start(nil)
	config := csisanity.NewTestConfig()
	config.Address = m.path("csi.sock")
	config.TargetPath, config.StagingPath = m.path("co/target"), m.path("co/staging")
	config.DialOptions = append(config.DialOptions, grpc.WithUnaryInterceptor(withSize))
	config.TestVolumeParameters = s.parameters
	config.TestVolumeSize = 4 << 20
	config.TestVolumeExpandSize = 8 << 20
	if s.block {
		config.TestVolumeAccessType = "block"
	}
	if len(s.secrets) > 0 {
		config.SecretsFile = m.secretsFile()
	}
	if err := os.Mkdir(m.path("co"), 0o700); err != nil {
		t.Fatal(err)
	}
	gomega.RegisterFailHandler(ginkgo.Fail)
	csisanity.GinkgoTest(&config)
	suite, reporter := ginkgo.GinkgoConfiguration()
	reporter.NoColor, reporter.Succinct = true, true
	ginkgo.RunSpecs(t, "CSI sanity", suite, reporter)
	stop()
	m.checkLeaks(t)
}

// withSize stores the size of each answer in it. csi-sanity compares the topology of a snapshot with that of the node by reflect.DeepEqual, and gRPC has
// stored sizes in the latter if it was part of a request of more than 127 bytes.
func withSize(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, conn, opts...)
	if message, ok := reply.(proto.Message); ok {
		proto.Size(message)
	}
	return err
}

// secretsFile writes the secrets in csi-sanity's form: the same for each kind of call.
func (m *machine) secretsFile() string {
	all := map[string]map[string]string{}
	for _, call := range []string{
		"CreateVolumeSecret", "DeleteVolumeSecret", "ControllerPublishVolumeSecret", "ControllerUnpublishVolumeSecret",
		"ControllerValidateVolumeCapabilitiesSecret", "NodeStageVolumeSecret", "NodePublishVolumeSecret", "CreateSnapshotSecret", "DeleteSnapshotSecret",
		"ControllerExpandVolumeSecret", "ListSnapshotsSecret",
	} {
		all[call] = m.s.secrets
	}
	text, err := yaml.Marshal(all)
	if err == nil {
		err = os.WriteFile(m.path("secrets.yaml"), text, 0o600)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return m.path("secrets.yaml")
}
