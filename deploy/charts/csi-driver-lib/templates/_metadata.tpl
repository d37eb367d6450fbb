{{/* Not empty if csi-snapshot-metadata runs. */}}
{{- define "csi-driver-lib.metadata" -}}
{{- if and .Values.snapshotMetadata.enabled .Values.snapshots (include "csi-driver-lib.can" (list . "SNAPSHOT_METADATA_SERVICE")) }}yes{{ end -}}
{{- end -}}

{{/* The container of csi-snapshot-metadata. All pods serve, without a leader. */}}
{{- define "csi-driver-lib.metadataContainer" -}}
{{- $values := .Values.snapshotMetadata -}}
- name: snapshot-metadata
  {{- include "csi-driver-lib.image" (list . "csi-snapshot-metadata") | nindent 2 }}
  args:
  - --csi-address=/csi/csi.sock
  - --tls-cert=/certificates/tls.crt
  - --tls-key=/certificates/tls.key
  {{- with $values.audience }}
  - --audience={{ . }}
  {{- end }}
  - --port=50051
  - --http-endpoint=:9818
  - --v={{ .Values.logLevel }}
  {{- with include "csi-driver-lib.secretsArg" . }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $values.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  ports:
  - {name: metadata, containerPort: 9818}
  - {name: metadata-grpc, containerPort: 50051}
  livenessProbe:
    httpGet: {path: /livez, port: metadata}
    timeoutSeconds: 5
  readinessProbe:
    httpGet: {path: /readyz, port: metadata}
    timeoutSeconds: 5
  {{- include "csi-driver-lib.unprivileged" . | nindent 2 }}
  resources: {{- toYaml $values.resources | nindent 4 }}
  volumeMounts:
  - {name: socket-dir, mountPath: /csi}
  {{- include "csi-driver-lib.apiMount" . | nindent 2 }}
  - {name: certificates, mountPath: /certificates, readOnly: true}
{{- end -}}

{{/* The Service of csi-snapshot-metadata, the object by which backup programs find it, and its rights. */}}
{{- define "csi-driver-lib.snapshot-metadata" -}}
{{- if include "csi-driver-lib.metadata" . -}}
{{- $name := printf "%s-snapshot-metadata" (include "csi-driver-lib.name" .) -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  namespace: {{ .Release.Namespace }}
  labels: {{- include "csi-driver-lib.labels" . | nindent 4 }}
spec:
  selector:
    app.kubernetes.io/name: {{ include "csi-driver-lib.name" . }}-controller
  ports:
  - {name: grpc, port: 6443, targetPort: metadata-grpc}
{{- with .Values.snapshotMetadata.caCert }}
{{- if $.Capabilities.APIVersions.Has "cbt.storage.k8s.io/v1beta1" }}
---
apiVersion: cbt.storage.k8s.io/v1beta1
kind: SnapshotMetadataService
metadata:
  name: {{ $.Values.driver.name }}
  labels: {{- include "csi-driver-lib.labels" $ | nindent 4 }}
spec:
  address: {{ $name }}.{{ $.Release.Namespace }}.svc:6443
  audience: {{ $.Values.snapshotMetadata.audience | default $.Values.driver.name }}
  caCert: {{ . }}
{{- end }}
{{- end }}
---
{{ include "csi-driver-lib.rbac-snapshot-metadata" . }}
{{- end -}}
{{- end -}}

{{- define "csi-driver-lib.rbac-snapshot-metadata" -}}
{{- $rules := `
- {apiGroups: [authentication.k8s.io], resources: [tokenreviews], verbs: [create]}
- {apiGroups: [authorization.k8s.io], resources: [subjectaccessreviews], verbs: [create]}
- {apiGroups: [cbt.storage.k8s.io], resources: [snapshotmetadataservices], verbs: [get]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshots], verbs: [get]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotcontents], verbs: [get]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotclasses], verbs: [get]}
` -}}
{{- include "csi-driver-lib.clusterrole" (list . "snapshot-metadata" $rules) -}}
{{- end -}}
