package intents

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/provisioner/internal/params"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

const (
	// recordSize is the limit of a record in bytes, whatever the names and the topology of its volume.
	recordSize = 300
	// formatVersion is the version of the documents that are written. Documents of another version are not read.
	formatVersion = 1
	// uidMark replaces the UID in names of volumes.
	uidMark = "*"
)

// record is the stored form of an intent: all that a successor needs to ask for the volume again, and no secret. What many
// volumes have in common, such as the parameters of a class, is stored once and named by a digest.
type record struct {
	UID types.UID `json:"uid"`
	// Volume is the name of the volume, in which a star replaces the UID.
	Volume string `json:"volume"`
	// Claim is the namespace and name of the claim; ClaimPart is their digest where they are too long.
	Claim     string `json:"claim,omitempty"`
	ClaimPart string `json:"claimPart,omitempty"`
	// Since is the time of the first request, in seconds of Unix time.
	Since int64 `json:"since"`
	// Uncertain says that an attempt may have left a volume that the driver did not confirm.
	Uncertain bool `json:"uncertain,omitempty"`
	// Bytes is the requested size.
	Bytes int64 `json:"bytes,omitempty"`
	// Named says that the parameters have the names of claim and volume (--extra-create-metadata).
	Named bool `json:"named,omitempty"`
	// Request, Secret, Segment, Source and Node are the digests of a request without what is in the record itself, of a
	// corev1.SecretReference, of the segment of the topology that was preferred, of a source, and of the name of the node whose
	// instance made the request.
	Request string `json:"request"`
	Secret  string `json:"secret,omitempty"`
	Segment string `json:"segment,omitempty"`
	Source  string `json:"source,omitempty"`
	Node    string `json:"node,omitempty"`
}

// source is the stored form of a volume.Source.
type source struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Content is a csi.VolumeContentSource in protobuf.
	Content []byte `json:"content"`
}

// parts has what records have in common, by digest.
type parts map[string]json.RawMessage

// document is what one object of a Journal holds.
type document struct {
	Version int      `json:"version"`
	Records []record `json:"records"`
	Parts   parts    `json:"parts,omitempty"`
}

// add stores a part and returns its digest.
func (p parts) add(value any) (string, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	name := digest(text)
	p[name] = text
	return name, nil
}

// digest returns the name of a part.
func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6])
}

// addNode stores the name of a node and returns its digest; no name has none.
func (p parts) addNode(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	return p.add(name)
}

// digestOf returns what addNode returns.
func digestOf(node string) string {
	digest, _ := parts{}.addNode(node) // a string is always encoded
	return digest
}

// node returns the name of the node whose instance made the request.
func (r record) node(shared parts) (name string, err error) {
	if r.Node == "" {
		return "", nil
	}
	err = shared.read(r.Node, &name)
	return name, err
}

// find returns the place of the record of the same claim and node as r, below 0 when there is none.
func (d *document) find(r record) int {
	return slices.IndexFunc(d.Records, func(other record) bool { return other.UID == r.UID && other.Node == r.Node })
}

// drop removes the record of the same claim and node as r.
func (d *document) drop(r record) {
	if i := d.find(r); i >= 0 {
		d.Records = slices.Delete(d.Records, i, i+1)
	}
}

// read reads a part into value.
func (p parts) read(digest string, value any) error {
	text, ok := p[digest]
	if !ok {
		return fmt.Errorf("part %q is missing", digest)
	}
	if err := json.Unmarshal(text, value); err != nil {
		return fmt.Errorf("part %q: %w", digest, err)
	}
	return nil
}

// recordOf returns the stored form of an intent of the instance of a node, and the parts that it refers to.
func recordOf(intent Intent, node string) (record, parts, error) {
	claim, shared := intent.Spec.Claim, parts{}
	r := record{
		UID: claim.UID, Volume: strings.Replace(intent.Spec.Name, string(claim.UID), uidMark, 1), Claim: claim.Namespace + "/" + claim.Name, Since: intent.Opened.Unix(),
		Uncertain: !intent.Uncertain.IsZero(), Bytes: intent.Request.GetCapacityRange().GetRequiredBytes(),
	}
	template, named := templateOf(intent.Request)
	r.Named = named
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(template)
	if err == nil {
		r.Request, err = shared.add(text)
	}
	if ref := intent.Spec.Secrets.Provision; ref != nil && err == nil {
		r.Secret, err = shared.add(ref)
	}
	if segment := preferred(intent.Request.GetAccessibilityRequirements()); segment != nil && err == nil {
		r.Segment, err = shared.add(segment)
	}
	if from := intent.Spec.Source; from != nil && err == nil {
		r.Source, err = shared.addSource(from)
	}
	if err == nil {
		r.Node, err = shared.addNode(node)
	}
	if r.size() > recordSize && err == nil {
		r.ClaimPart, err = shared.add(r.Claim)
		r.Claim = ""
	}
	if err != nil {
		return record{}, nil, fmt.Errorf("encode the record of volume %q: %w", intent.Spec.Name, err)
	}
	return r, shared, nil
}

// addSource stores a source and returns its digest.
func (p parts) addSource(from *volume.Source) (string, error) {
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(from.Content)
	if err != nil {
		return "", err
	}
	return p.add(source{Kind: from.Ref.Kind, Namespace: from.Ref.Namespace, Name: from.Ref.Name, Content: content})
}

// size returns the size of the record in bytes, with what separates it from the next one.
func (r record) size() int {
	text, err := json.Marshal(r)
	if err != nil { // which cannot happen with strings and numbers
		return recordSize
	}
	return len(text) + 1
}

// digests returns the parts that the record refers to.
func (r record) digests() []string {
	return slices.DeleteFunc([]string{r.ClaimPart, r.Request, r.Secret, r.Segment, r.Source, r.Node}, func(digest string) bool { return digest == "" })
}

// templateOf returns a request without what records have for themselves, and whether its parameters had the names of claim
// and volume.
func templateOf(request *csi.CreateVolumeRequest) (template *csi.CreateVolumeRequest, named bool) {
	template = &csi.CreateVolumeRequest{
		CapacityRange:      &csi.CapacityRange{LimitBytes: request.GetCapacityRange().GetLimitBytes()},
		VolumeCapabilities: request.GetVolumeCapabilities(), Parameters: request.GetParameters(), MutableParameters: request.GetMutableParameters(),
	}
	if _, named = template.GetParameters()[params.KeyPVName]; named {
		template.Parameters = maps.Clone(template.GetParameters())
		for _, key := range []string{params.KeyPVName, params.KeyClaimName, params.KeyClaimNamespace} {
			delete(template.GetParameters(), key)
		}
	}
	return template, named
}

// preferred returns the segment that a volume is most likely to be in, nil for none.
func preferred(requirement *csi.TopologyRequirement) map[string]string {
	for _, list := range [][]*csi.Topology{requirement.GetPreferred(), requirement.GetRequisite()} {
		if len(list) > 0 {
			return list[0].GetSegments()
		}
	}
	return nil
}

// intent returns the intent of a record. It is recovered: its claim has a name and a UID only, and where a volume may be is known in part.
func (r record) intent(shared parts) (Intent, error) {
	if r.UID == "" || r.Volume == "" {
		return Intent{}, errors.New("fields uid and volume: must not be empty")
	}
	name, since := strings.Replace(r.Volume, uidMark, string(r.UID), 1), time.Unix(r.Since, 0)
	intent := Intent{
		Stage: Creating, Spec: volume.Spec{Name: name, Claim: &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: r.UID}}},
		Request: &csi.CreateVolumeRequest{}, Opened: since, Uncertain: since, Renewable: true, Recovered: true,
	}
	for _, read := range []func(*Intent, parts) error{r.readRequest, r.readClaim, r.readSecret, r.readSegment, r.readSource} {
		if err := read(&intent, shared); err != nil {
			return Intent{}, fmt.Errorf("volume %q: %w", name, err)
		}
	}
	return intent, nil
}

// readRequest reads what the request has in common with others, and adds what it has for itself.
func (r record) readRequest(intent *Intent, shared parts) error {
	var text []byte
	if err := shared.read(r.Request, &text); err != nil {
		return err
	}
	if err := proto.Unmarshal(text, intent.Request); err != nil {
		return fmt.Errorf("part %q: %w", r.Request, err)
	}
	intent.Request.Name = intent.Spec.Name
	intent.Request.CapacityRange = &csi.CapacityRange{RequiredBytes: r.Bytes, LimitBytes: intent.Request.GetCapacityRange().GetLimitBytes()}
	return nil
}

// readClaim reads the name of the claim.
func (r record) readClaim(intent *Intent, shared parts) error {
	name := r.Claim
	if r.ClaimPart != "" {
		if err := shared.read(r.ClaimPart, &name); err != nil {
			return err
		}
	}
	claim := intent.Spec.Claim
	claim.Namespace, claim.Name, _ = strings.Cut(name, "/")
	if r.Named {
		intent.Request.Parameters = volume.WithMetadata(intent.Request.GetParameters(), claim, intent.Spec.Name)
	}
	return nil
}

// readSecret reads the reference to the secret.
func (r record) readSecret(intent *Intent, shared parts) error {
	if r.Secret == "" {
		return nil
	}
	intent.Spec.Secrets.Provision = &corev1.SecretReference{}
	return shared.read(r.Secret, intent.Spec.Secrets.Provision)
}

// readSegment reads the topology.
func (r record) readSegment(intent *Intent, shared parts) error {
	if r.Segment == "" {
		return nil
	}
	segment := &csi.Topology{}
	intent.Request.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{segment}, Preferred: []*csi.Topology{segment}}
	return shared.read(r.Segment, &segment.Segments)
}

// readSource reads what the volume is made from.
func (r record) readSource(intent *Intent, shared parts) error {
	if r.Source == "" {
		return nil
	}
	var stored source
	if err := shared.read(r.Source, &stored); err != nil {
		return err
	}
	content := &csi.VolumeContentSource{}
	if err := proto.Unmarshal(stored.Content, content); err != nil {
		return fmt.Errorf("part %q: %w", r.Source, err)
	}
	intent.Request.VolumeContentSource = content
	intent.Spec.Source = &volume.Source{Ref: volume.SourceRef{Kind: stored.Kind, Namespace: stored.Namespace, Name: stored.Name}, Content: content}
	return nil
}

// encode returns a document with records and the parts that they refer to, always the same for the same records.
func encode(records []record, shared parts) (string, error) {
	byClaim := func(a, b record) int { return cmp.Or(cmp.Compare(a.UID, b.UID), cmp.Compare(a.Node, b.Node)) }
	d := document{Version: formatVersion, Records: slices.SortedFunc(slices.Values(records), byClaim), Parts: parts{}}
	for _, r := range d.Records {
		for _, digest := range r.digests() {
			d.Parts[digest] = shared[digest]
		}
	}
	text, err := json.Marshal(d)
	if err != nil {
		return "", fmt.Errorf("encode records: %w", err)
	}
	return string(text), nil
}

// decode reads a document; an empty text is one without records.
func decode(text string) (document, error) {
	if text == "" {
		return document{Version: formatVersion}, nil
	}
	var d document
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		return document{}, fmt.Errorf("decode records: %w", err)
	}
	if d.Version != formatVersion {
		return document{}, fmt.Errorf("decode records: version %d, must be %d", d.Version, formatVersion)
	}
	return d, nil
}

// keep drops the parts that no record refers to any more.
func (p parts) keep(records map[types.UID]record) {
	used := map[string]bool{}
	for _, r := range records {
		for _, digest := range r.digests() {
			used[digest] = true
		}
	}
	maps.DeleteFunc(p, func(digest string, _ json.RawMessage) bool { return !used[digest] })
}
