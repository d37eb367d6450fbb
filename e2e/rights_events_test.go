package e2e

import (
	"context"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/e2e/rights"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

const failingClass = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: %[1]s}
driver: %[2]s
deletionPolicy: Delete
`

// failAll lets all that a driver is asked to make or to change fail. The returned function waits until each component has counted an event that it repeats, which it does after
// a minute, and heals the driver.
func (s *story) failAll() (counted func()) {
	const name = "failing.example.com"
	driver := csitest.New(csitest.Options{
		Name: name, Controller: append(csitest.AllController(), csitest.AllSnapshots()...), Node: []csi.NodeServiceCapability_RPC_Type{},
	})
	address := driver.Serve(s.T)
	for _, component := range rights.Components() {
		if component != "snapshot-controller" { // which works for all drivers
			s.Run(component, "--csi-address="+address, "--kubeconfig="+s.Dev.KubeconfigOf(component), "--retry-interval-max=10s")
		}
	}
	class := testbed.Class(s.Namespace+"-failing", name, storagev1.VolumeBindingImmediate)
	s.AddClass(class)
	s.AddObject(fmt.Sprintf(failingClass, s.Namespace, name))
	s.CreateClaim("data", class.Name)
	s.WaitBound("data")

	// Not what a sidecar asks when it starts, as some of them may still be about to.
	for _, method := range []string{"CreateVolume", "ControllerExpandVolume", "ControllerPublishVolume", "CreateSnapshot"} {
		driver.Inject(csitest.Fault{Method: method, Code: codes.Unavailable, Message: "the storage system is away"})
	}
	s.CreateClaim("more", class.Name)
	s.Grow("data", "32Mi")
	taken, absent := s.TakeSnapshot("failing", "data"), s.TakeSnapshot("absent", "no-such-claim")
	attachment := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: s.Namespace + "-failing"},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: name, NodeName: "no-such-node", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new(s.Volume("data").Name)}},
	}
	s.failAttachment(attachment)

	return func() {
		for _, component := range rights.Components() {
			s.Wait(component+" to count an event", func(context.Context) (bool, error) {
				// The snapshot-controller says again what a snapshot lacks when that changes.
				absent.SetAnnotations(map[string]string{"changed": time.Now().String()})
				s.Write(absent)
				calls, err := rights.Asked(s.Dev)
				return calls[component]["patch events"], err
			})
		}
		driver.Heal()
		s.deleteAttachment(attachment)
		s.Delete(absent)
		s.Delete(taken)
		s.WaitNoSnapshots()
		s.DeleteClaim("more")
		s.deleteClaim()
		s.WaitNothingLeft()
	}
}
