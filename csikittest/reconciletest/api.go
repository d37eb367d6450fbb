package reconciletest

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// apply creates or replaces the objects of the input.
func (s *stage) apply(c *command) string {
	decoder := serializer.NewCodecFactory(s.cluster.Scheme(), serializer.EnableStrict).UniversalDeserializer()
	documents := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(c.data.Input)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return ""
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		obj, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			c.fatalf("read object: %v", err)
		}
		if err := s.cluster.Apply(obj); err != nil {
			c.fatalf("%v", err)
		}
		synctest.Wait() // informers of different kinds see the objects in the order of the file
	}
}

// object reads the arguments <kind> <namespace/name>.
func (s *stage) object(c *command) (resource, namespace, name string) {
	words := c.words()
	if len(words) != 2 {
		c.fatalf("%s needs two arguments: kind, and name or namespace/name", c.data.Cmd)
	}
	resource, err := s.cluster.ResourceOf(words[0])
	if err != nil {
		c.fatalf("%v", err)
	}
	namespace, name = splitName(words[1])
	return resource, namespace, name
}

// patch merges the input into an object.
func (s *stage) patch(c *command) string {
	resource, namespace, name := s.object(c)
	patch, err := yaml.YAMLToJSON([]byte(c.data.Input))
	if err != nil {
		c.fatalf("read patch: %v", err)
	}
	if err := s.cluster.Merge(resource, namespace, name, patch); err != nil {
		c.fatalf("%v", err)
	}
	return ""
}

// remove deletes an object.
func (s *stage) remove(c *command) string {
	resource, namespace, name := s.object(c)
	if err := s.cluster.Remove(resource, namespace, name); err != nil {
		c.fatalf("%v", err)
	}
	return ""
}

// drop removes an object in spite of its finalizers.
func (s *stage) drop(c *command) string {
	resource, namespace, name := s.object(c)
	if err := s.cluster.Drop(resource, namespace, name); err != nil {
		c.fatalf("%v", err)
	}
	return ""
}

// dump prints objects of a kind.
func (s *stage) dump(c *command) string {
	words := c.words()
	if len(words) == 0 || len(words) > 2 {
		c.fatalf("dump needs a kind, and perhaps a name")
	}
	resource, err := s.cluster.ResourceOf(words[0])
	if err != nil {
		c.fatalf("%v", err)
	}
	var documents []string
	for _, obj := range s.cluster.Objects(resource) {
		if len(words) == 1 || words[1] == nameOf(obj.GetNamespace(), obj.GetName()) {
			documents = append(documents, toYAML(document(obj))+"\n")
		}
	}
	if len(documents) == 0 {
		return "(none)\n"
	}
	return strings.Join(documents, "---\n")
}

// apiFault injects a fault into requests to the API.
func (s *stage) apiFault(c *command) string {
	f := kubetest.Fault{
		Verb: c.text("verb"), Resource: c.text("resource"), Namespace: c.text("namespace"), Name: c.text("name"),
		Delay: c.duration(c.text("delay")), Times: c.number(c.text("times")), Hang: c.has("hang"), After: c.has("after"),
	}
	if name := c.text("error"); name != "" {
		f.Err = c.apiError(name, c.text("message"))
	}
	if c.has("crash") {
		f.Times = max(f.Times, 1)
		f.Do = func() { s.running.kill() }
	}
	if f.Err == nil && f.Delay == 0 && !f.Hang && f.Do == nil {
		c.fatalf("api-fault needs one of error=, delay=, hang, crash")
	}
	s.cluster.Inject(f)
	return ""
}

// apiError returns the API's error of that name.
func (c *command) apiError(name, message string) error {
	if message == "" {
		message = "injected"
	}
	resource := schema.GroupResource{Resource: c.text("resource")}
	// A field that is not valid, what an admission policy denies, which names no field, and a JSON patch whose test fails, which has no cause, have the same code.
	denied := apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", resource, "", message, 0, false)
	denied.ErrStatus.Details.Causes = []metav1.StatusCause{{Message: message}}
	invalid := apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", resource, "", message, 0, false)
	invalid.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeFieldValueInvalid, Field: "spec", Message: message}}
	errs := map[string]error{
		"conflict":          apierrors.NewConflict(resource, c.text("name"), errors.New(message)),
		"not-found":         apierrors.NewNotFound(resource, c.text("name")),
		"already-exists":    apierrors.NewAlreadyExists(resource, c.text("name")),
		"forbidden":         apierrors.NewForbidden(resource, c.text("name"), errors.New(message)),
		"denied":            denied,
		"invalid":           invalid,
		"stale":             apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", resource, "", message, 0, false),
		"timeout":           apierrors.NewTimeoutError(message, 1),
		"too-many-requests": apierrors.NewTooManyRequests(message, 1),
		"internal":          apierrors.NewInternalError(errors.New(message)),
		"unavailable":       apierrors.NewServiceUnavailable(message),
	}
	err, ok := errs[name]
	if !ok {
		c.fatalf("unknown API error %q", name)
	}
	return err
}

// serve sets whether the server has the kinds of an API group. Its watches end when it has them no more.
func (s *stage) serve(c *command) string {
	off := c.has("off")
	words := slices.DeleteFunc(c.words(), func(word string) bool { return word == "off" })
	if len(words) != 1 {
		c.fatalf("serve needs an API group")
	}
	s.cluster.SetServed(words[0], !off)
	if off {
		s.cluster.BreakWatches()
	}
	return ""
}

// breakWatches ends all watches.
func (s *stage) breakWatches(c *command) string {
	if c.has("compact") {
		s.cluster.Compact()
	}
	s.cluster.BreakWatches()
	return ""
}
