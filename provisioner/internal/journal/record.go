package journal

import (
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protojson"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

const (
	// formatVersion is the version of the documents that are written. Documents of another version are not read.
	formatVersion = 2
	// maxSize is the limit of a document in bytes: the API takes 256 KiB of annotations in all. Some thousand records fit.
	maxSize = 240 << 10
	// trustedAge is how long ago the writer of a record may have been at work for the record to be acted on.
	trustedAge = time.Hour
	// clockSkew is how far the clock of the writer may be ahead.
	clockSkew = 5 * time.Minute
)

// errFull is returned for records that no Lease can hold.
var errFull = fmt.Errorf("the records are larger than %d bytes", maxSize)

// record is the stored form of an intent: all that a successor needs to repeat the request, and no secret.
type record struct {
	UID types.UID `json:"uid"`
	// Claim is the namespace and name of the claim, Volume the name of the volume.
	Claim  string `json:"claim"`
	Volume string `json:"volume"`
	// Since is the time of the first request.
	Since time.Time `json:"since"`
	// Request is the csi.CreateVolumeRequest.
	Request json.RawMessage `json:"request"`
	// Secret is the secret of the request, and Source what the volume is made from.
	Secret *corev1.SecretReference `json:"secret,omitempty"`
	Source *volume.SourceRef       `json:"source,omitempty"`
	// Reported says why the record is not acted on.
	Reported string `json:"reported,omitempty"`
	// busy is that of the document.
	busy time.Duration
}

// document is what the annotation of a Lease holds, in JSON, compressed by gzip and in base64: requests are much alike.
type document struct {
	Version int `json:"version"`
	// Term and Written are the term of the writer, and the time of the write.
	Term
	Written time.Time `json:"written"`
	// Busy is how long the writer goes on with its records although another process may take them over; see Journal.HandOver.
	Busy    time.Duration `json:"busy,omitempty"`
	Records []record      `json:"records"`
}

// recordOf returns the stored form of an intent.
func recordOf(intent Intent) (r record, err error) {
	r = record{UID: intent.UID(), Claim: intent.Spec.Claim.Namespace + "/" + intent.Spec.Claim.Name, Volume: intent.Spec.Name, Since: intent.Opened, Secret: intent.Spec.Secrets.Provision}
	if source := intent.Spec.Source; source != nil {
		r.Source = &source.Ref
	}
	if r.Request, err = protojson.Marshal(intent.Request); err != nil {
		return record{}, fmt.Errorf("encode the record of volume %q: %w", intent.Spec.Name, err)
	}
	return r, nil
}

// claim returns what a record says of the claim.
func (r record) claim() *corev1.PersistentVolumeClaim {
	namespace, name, _ := strings.Cut(r.Claim, "/")
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: r.UID, Namespace: namespace, Name: name}}
}

// intent returns the intent of a record. One whose request cannot be read is reported.
func (r record) intent() Intent {
	intent := Intent{Stage: Creating, Spec: volume.Spec{Name: r.Volume, Claim: r.claim()}, Opened: r.Since, Recovered: true, Reason: r.Reported}
	intent.Spec.Secrets.Provision = r.Secret
	request := &csi.CreateVolumeRequest{}
	if err := protojson.Unmarshal(r.Request, request); err != nil && r.Reported == "" {
		intent.Reason = "its record cannot be read: " + err.Error()
	}
	if intent.Reason != "" {
		intent.Stage = Reported
		return intent
	}
	intent.Request = request
	if r.Source != nil {
		intent.Spec.Source = &volume.Source{Ref: *r.Source, Content: request.GetVolumeContentSource()}
	}
	return intent
}

// packers are kept, as each has tables of a megabyte, and one is needed for each write of the records.
var packers = sync.Pool{New: func() any {
	packer, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed) // a level that exists
	return packer
}}

// encode returns a document with records as text.
func encode(d document, records map[types.UID]record) (string, error) {
	d.Version = formatVersion
	d.Records = slices.SortedFunc(maps.Values(records), func(a, b record) int { return cmp.Compare(a.UID, b.UID) })
	var text strings.Builder
	encoder := base64.NewEncoder(base64.StdEncoding, &text)
	packer := packers.Get().(*gzip.Writer) //nolint:forcetypeassert // New made it
	defer packers.Put(packer)
	packer.Reset(encoder)
	if err := errors.Join(json.NewEncoder(packer).Encode(d), packer.Close(), encoder.Close()); err != nil {
		return "", fmt.Errorf("encode records: %w", err)
	}
	if text.Len() > maxSize {
		return "", fmt.Errorf("encode %d records: %w", len(records), errFull)
	}
	return text.String(), nil
}

// decode reads a document; an empty text is one without records.
func decode(text string) (d document, err error) {
	if text == "" {
		return document{}, nil
	}
	unpacker, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(text)))
	if err == nil {
		err = json.NewDecoder(io.LimitReader(unpacker, maxSize<<8)).Decode(&d)
	}
	if err == nil && d.Version != formatVersion {
		err = fmt.Errorf("version %d, must be %d", d.Version, formatVersion)
	}
	if err != nil {
		return document{}, fmt.Errorf("decode records: %w", err)
	}
	return d, nil
}

// distrust returns why the records of a document may not be acted on in a term, empty if they may: their writer was the direct predecessor, and at
// work a short time ago.
func (d document) distrust(now Term, at time.Time) string {
	age := at.Sub(d.Written)
	switch {
	case !now.follows(d.Term):
		return "another process may have provisioned since the record was written"
	case age > trustedAge || age < -clockSkew:
		return fmt.Sprintf("its writer was at work last at %s, which is not within the last %v", d.Written.Format(time.RFC3339), trustedAge)
	}
	return ""
}
