package journal

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// former stores a Lease as version 1 has written it, with the record of a claim.
func (b *bench) former(page int, uid string, since time.Time) {
	b.t.Helper()
	text := fmt.Sprintf(`{"version":1,"records":[{"uid":%q,"volume":"pvc-*","claim":"team/data","since":%d,"bytes":1073741824,"request":"8d189923f470","segment":"f634f8924adc"}],`+
		`"parts":{"8d189923f470":"EgAaBhoCCAcSAA==","f634f8924adc":{"zone":"a"}}}`, uid, since.Unix())
	b.apply(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: fmt.Sprint("driver-journal-", page), Annotations: map[string]string{Annotation: text}}})
}

// TestFormer upgrades from version 1 with volumes in progress, two Leases of which are missing: its recent records are moved, with their requests, and what
// is old is reported. A Lease that cannot be read stays.
func TestFormer(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		b.elected = true
		b.former(0, "new", time.Now().Add(-59*time.Minute))
		b.former(2, "old", time.Now().Add(-61*time.Minute))
		b.former(4, "u4", time.Now().Add(time.Hour))
		b.apply(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "driver-journal-5", Annotations: map[string]string{Annotation: `{"version":1,"records":[{"uid":"broken","volume":"pvc-*","request":"0a"}]}`}}})
		b.apply(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "driver-journal-6", Annotations: map[string]string{Annotation: `{"version":`}}})
		j, stop := b.start()
		want := []string{"pvc-broken reported", "pvc-new", "pvc-old reported", "pvc-u4 reported"}
		if diff := cmp.Diff(want, names(j.List())); diff != "" {
			t.Errorf("intents (-want +got):\n%s", diff)
		}
		intent, _ := j.Get("new")
		r := intent.Request
		if r.GetName() != "pvc-new" || r.GetCapacityRange().GetRequiredBytes() != 1<<30 || len(r.GetVolumeCapabilities()) != 1 ||
			r.GetAccessibilityRequirements().GetPreferred()[0].GetSegments()["zone"] != "a" || intent.Spec.Claim.Namespace != "team" || intent.Spec.Claim.Name != "data" {
			t.Errorf("request %v of claim %s/%s", r, intent.Spec.Claim.Namespace, intent.Spec.Claim.Name)
		}
		if left := len(b.cluster.Objects("leases")); left != 2 || len(b.stored().Records) != 4 || b.lease("driver-journal-6") == nil {
			t.Errorf("%d Leases, %d records, want the new Lease with all of them, and the one that cannot be read", left, len(b.stored().Records))
		}
		stop()
		j, stop = b.start()
		if diff := cmp.Diff(want, names(j.List())); diff != "" {
			t.Errorf("intents of the process after that (-want +got):\n%s", diff)
		}
		stop()
	})
}

// TestFormerName has a node whose Lease has the name that version 1 gave to the records of another node: it is neither read nor deleted, and the log does not ask for its deletion.
func TestFormerName(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		text, err := encode(document{Written: time.Now()}, map[types.UID]record{"u1": {UID: "u1", Claim: "team/data", Volume: "pvc-u1", Request: []byte("{}")}})
		if err != nil {
			t.Fatal(err)
		}
		b.apply(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "driver-journal-0", Annotations: map[string]string{Annotation: text}}})
		var log strings.Builder
		b.log = &log
		j, stop := b.start()
		stop()
		if open := j.List(); len(open) > 0 || b.lease("driver-journal-0") == nil || strings.Contains(log.String(), "cannot be read") {
			t.Errorf("intents %v, Lease of the other node: %v, log:\n%s", names(open), b.lease("driver-journal-0"), log.String())
		}
	})
}
